"""A plain ViT's architecture: read from its weights, written into our own files, built as a timm model."""

from functools import partial
from math import isqrt
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from timm.layers import SwiGLUPacked
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from diffusionlens.errors import InputError
from diffusionlens.spec import is_whole

_HEAD_WIDTH = 64


class Architecture(BaseModel):
    """What makes two plain ViTs different. `positions_of_prefix`: the position table starts with entries for the prefix
    tokens. `rotary`: DINOv3's rotary positions instead of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grid: tuple[int, int]
    patch_size: tuple[int, int]
    width: int
    depth: int
    heads: int
    hidden: int
    has_cls: bool = True
    registers: int = 0
    positions_of_prefix: bool = True
    rotary: bool = False
    layer_scale: bool = False
    swiglu: bool = False
    qkv_bias: bool = True
    proj_bias: bool = True
    qk_norm: bool = False
    norm_before_blocks: bool = False
    final_norm: bool = True
    fc_norm: bool = False

    def describe(self) -> str:
        """For people: "ViT, 12 blocks, width 384, 6 heads, patch 16"."""
        patch = (
            str(self.patch_size[0]) if self.patch_size[0] == self.patch_size[1] else "{}x{}".format(*self.patch_size)
        )
        extras = [f"{self.registers} registers"] if self.registers else []
        extras += ["LayerScale"] if self.layer_scale else []
        extras += ["SwiGLU"] if self.swiglu else []
        extras += ["rotary positions"] if self.rotary else []
        extras += [] if self.has_cls else ["no CLS"]
        return ", ".join(
            [f"ViT, {self.depth} blocks", f"width {self.width}", f"{self.heads} heads", f"patch {patch}", *extras]
        )


def read_architecture(
    state: dict[str, Tensor], heads: int | None, size: tuple[int, int] | None, rotary: bool, file: str
) -> tuple[Architecture, list[str]]:
    """The architecture that weights under timm's names belong to, and what had to be assumed.

    Args:
        heads: given by the user, or None for one head per 64 dimensions.
        size: picture size (H, W) of the position table where it is not square.

    Raises:
        InputError: a fact can't be read from the weights and was not given.
    """
    notes = []
    try:
        projection = state["patch_embed.proj.weight"]
        hidden_in, hidden_out = _mlp_shapes(state)
        width, patch = projection.shape[0], (projection.shape[2], projection.shape[3])
    except KeyError as error:
        raise InputError(f"{file} lacks the weight {error} of a ViT; wanted the whole backbone") from None
    except IndexError:
        raise InputError(f"{file}: weights of its patch embedding or first MLP are no matrices; it is no ViT") from None
    if projection.shape[1] != 3:
        raise InputError(f"{file} takes pictures of {projection.shape[1]} channels; only RGB models (3) are measured")
    if heads is None:
        if width % _HEAD_WIDTH:
            raise InputError(f"{file}: the number of heads can't be read from weights of width {width}; add ?heads=N")
        heads = width // _HEAD_WIDTH
        notes.append(f"{heads} heads assumed ({_HEAD_WIDTH} dimensions a head); say ?heads=N if that is wrong")
    if heads < 1 or width % heads:
        raise InputError(f"{file}: {heads} heads do not divide the width {width}; give the right ?heads=N")
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    has_cls = "cls_token" in state
    prefix = int(has_cls) + registers
    grid, with_prefix = (16, 16), False
    if not rotary:
        if "pos_embed" not in state or state["pos_embed"].dim() != 3:
            raise InputError(
                f"{file} has no position table (pos_embed, [1,N,D]), as a plain ViT has; is it another timm model, say which: "
                f"?timm=NAME"
            )
        grid, with_prefix = _grid(state["pos_embed"].shape[1], prefix, patch, size, file)
    architecture = Architecture(
        grid=grid,
        patch_size=patch,
        width=width,
        depth=1 + max(_block_number(key, file) for key in state if key.startswith("blocks.")),
        heads=heads,
        hidden=hidden_out,
        has_cls=has_cls,
        registers=registers,
        positions_of_prefix=with_prefix,
        rotary=rotary,
        layer_scale=any(key in state for key in ("blocks.0.ls1.gamma", "blocks.0.gamma_1")),
        swiglu="blocks.0.mlp.fc1_g.weight" in state or hidden_in != hidden_out,
        qkv_bias=any(key in state for key in ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias")),
        proj_bias="blocks.0.attn.proj.bias" in state,
        qk_norm="blocks.0.attn.q_norm.weight" in state,
        norm_before_blocks="norm_pre.weight" in state,
        final_norm="norm.weight" in state,
        fc_norm="fc_norm.weight" in state,
    )
    return architecture, notes


def _block_number(key: str, file: str) -> int:
    number = key.split(".")[1]
    if not is_whole(number):
        raise InputError(f"{file} has the weight '{key}'; wanted numbered blocks, as blocks.0: the file is no ViT's")
    return int(number)


def _mlp_shapes(state: dict[str, Tensor]) -> tuple[int, int]:
    """Inputs of the second layer of the MLP, and outputs of the first: they differ for a packed SwiGLU."""
    if "blocks.0.mlp.fc1_g.weight" in state:
        outputs = state["blocks.0.mlp.fc1_g.weight"].shape[0]
        return outputs, outputs
    return state["blocks.0.mlp.fc2.weight"].shape[1], state["blocks.0.mlp.fc1.weight"].shape[0]


def _grid(
    entries: int, prefix: int, patch: tuple[int, int], size: tuple[int, int] | None, file: str
) -> tuple[tuple[int, int], bool]:
    """The grid of a position table with `entries` entries, and whether the prefix tokens have entries too."""
    if size is not None:
        grid = (size[0] // patch[0], size[1] // patch[1])
        for with_prefix in (True, False):
            if entries - prefix * with_prefix == grid[0] * grid[1]:
                return grid, with_prefix and prefix > 0
        raise InputError(
            f"{file}: a picture of {size[0]}x{size[1]} has {grid[0]}x{grid[1]} patches, the table {entries}"
        )
    for with_prefix in (True, False):
        patches = entries - prefix * with_prefix
        if patches > 0 and isqrt(patches) ** 2 == patches:
            return (isqrt(patches), isqrt(patches)), with_prefix and prefix > 0
    raise InputError(f"{file}: its position table has {entries} entries, which is no square grid; add ?img_size=HxW")


def build(architecture: Architecture) -> nn.Module:
    """A timm model of this architecture, its weights random: whoever calls loads all of them."""
    return _build_rotary(architecture) if architecture.rotary else _build_plain(architecture)


def _common(architecture: Architecture) -> dict[str, Any]:
    grid, patch = architecture.grid, architecture.patch_size
    return {
        "img_size": (grid[0] * patch[0], grid[1] * patch[1]),
        "patch_size": patch,
        "embed_dim": architecture.width,
        "depth": architecture.depth,
        "num_heads": architecture.heads,
        "mlp_ratio": architecture.hidden / architecture.width,
        "qkv_bias": architecture.qkv_bias,
        "init_values": 1e-5 if architecture.layer_scale else None,
        "num_classes": 0,
        "class_token": architecture.has_cls,
    }


def _build_plain(architecture: Architecture) -> nn.Module:
    swiglu: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if architecture.swiglu else {}
    return VisionTransformer(
        **_common(architecture),
        **swiglu,
        global_pool="avg" if architecture.fc_norm else ("token" if architecture.has_cls else ""),
        reg_tokens=architecture.registers,
        no_embed_class=not architecture.positions_of_prefix,
        qk_norm=architecture.qk_norm,
        proj_bias=architecture.proj_bias,
        pre_norm=architecture.norm_before_blocks,
        final_norm=architecture.final_norm or architecture.fc_norm,
        fc_norm=architecture.fc_norm,
        # CLIP's models, which have a norm in front of the blocks, keep torch's own epsilon; all others timm's.
        norm_layer=partial(nn.LayerNorm, eps=1e-5 if architecture.norm_before_blocks else 1e-6),
    )


def _build_rotary(architecture: Architecture) -> nn.Module:
    """DINOv3: timm keeps it as an EVA with rotary positions over normalised coordinates."""
    return Eva(
        **_common(architecture),
        num_reg_tokens=architecture.registers,
        swiglu_mlp=architecture.swiglu,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_fc_norm=False,
        global_pool="token",
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )


def load_state(model: nn.Module, state: dict[str, Tensor], file: str) -> None:
    """Loads `state` so that every weight of the model comes from it.

    Raises:
        InputError: a weight is missing, superfluous, of another shape, or not finite.
    """
    for key, value in state.items():
        _check_dense(key, value, file)
    own = model.state_dict()
    missing = sorted(set(own) - set(state))
    if missing:
        raise InputError(
            f"{file} lacks {len(missing)} weights of the backbone ({_some(missing)}); it would stay random there, so it "
            f"is not loaded: give the whole checkpoint"
        )
    extra = sorted(set(state) - set(own))
    if extra:
        raise InputError(f"{file} has {len(extra)} weights that this ViT does not ({_some(extra)}); not a plain ViT")
    for key, value in state.items():
        if value.shape != own[key].shape:
            wanted, got = tuple(own[key].shape), tuple(value.shape)
            raise InputError(
                f"{file}: {key} has the shape {got}, wanted {wanted}; the file mixes two models or is of another one"
            )
        if not torch.isfinite(value).all():
            raise InputError(f"{file}: {key} has values that are NaN or infinite; the checkpoint is damaged")
    model.load_state_dict({key: value.float() for key, value in state.items()}, strict=True)


def _check_dense(key: str, value: Tensor, file: str) -> None:
    """Refuses what no copy into a float32 parameter can be made of without losing something."""
    if value.layout != torch.strided or value.is_quantized or value.is_meta or not value.is_floating_point():
        kind = "meta" if value.is_meta else f"{value.layout}, {value.dtype}".replace("torch.", "")
        raise InputError(f"{file}: {key} is a tensor of the kind {kind}; wanted dense floating-point weights")


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
