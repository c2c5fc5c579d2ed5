"""What timm does not say in one place about its ViTs: blocks, final norm, token layout, preprocessing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from timm.data import resolve_model_data_config
from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Backbone, Origin, Preprocessing
from diffusionlens.models.positions import PositionRule
from diffusionlens.models.variant import attention_of

_WAY_OUT = (
    "measure a ViT whose tokens keep one grid through all blocks (vit_*, deit*, beit*, eva02_*, *dinov2*, *dinov3*)"
)


def backbone_of(
    label: str,
    model: nn.Module,
    origin: Origin,
    *,
    preprocessing: Preprocessing | None = None,
    position_rule: PositionRule = "timm",
) -> Backbone:
    """A timm model as a Backbone.

    Raises:
        InputError: the model has no single grid of patch tokens (hierarchical, windowed, convolutional).
    """
    blocks: Any = getattr(model, "blocks", None)
    patches: Any = getattr(model, "patch_embed", None)
    prefix = getattr(model, "num_prefix_tokens", None)
    attention: Any = None
    if isinstance(blocks, Sequence | nn.Sequential | nn.ModuleList) and len(blocks):
        attention = getattr(blocks[0], "attn", blocks[0])  # a parallel block is its own attention
    if not (hasattr(patches, "grid_size") and prefix is not None and hasattr(attention, "num_heads")):
        raise InputError(f"{label} ({type(model).__name__}) has no single grid of patch tokens; {_WAY_OUT}")
    has_cls = getattr(model, "cls_token", None) is not None
    norm = getattr(model, "norm", None)
    notes = list(origin.notes)
    if norm is None or isinstance(norm, nn.Identity):
        norm = None
        notes.append("the model has no final norm on its tokens: normed = raw")
    if hasattr(model, "dist_token"):
        notes.append("the distillation token counts as a register")
    data = preprocessing or _preprocessing(model)
    grid, patch = tuple(patches.grid_size), tuple(patches.patch_size)
    return Backbone(
        label=label,
        model=model,
        blocks=list(blocks),
        norm=norm,
        patch_size=(patch[0], patch[1]),
        width=int(getattr(model, "embed_dim", model.num_features)),  # type: ignore[arg-type]
        heads=int(attention.num_heads),
        has_cls=has_cls,
        registers=int(prefix) - int(has_cls),
        native_size=(grid[0] * patch[0], grid[1] * patch[1]),
        preprocessing=data,
        origin=replace(origin, notes=tuple(notes), attention=attention_of(model)),
        position_rule=position_rule,
    )


def _preprocessing(model: nn.Module) -> Preprocessing:
    config: dict[str, Any] = resolve_model_data_config(model)
    return Preprocessing(tuple(config["mean"]), tuple(config["std"]), str(config["interpolation"]))
