"""Separate weights for the CLS token and for the rest, after Marouani et al. (ICLR 2026, arXiv 2602.08626).

Every LayerNorm between tokens, the final one too, and the query/key/value projections of the first third of the blocks
exist twice; attention stays joint, and the number of operations stays what it was. Registers go with the patches: the
paper separates what becomes the image-level output from all else.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from diffusionlens.errors import InputError

_NORMS = ("norm1", "norm2", "norm")


class SpecializedLayer(nn.Module):
    """A layer with one set of weights for the first token (CLS) and one for the others: [B,N,D] -> [B,N,E].

    Loading weights of the plain layer (`weight`, `bias`) copies them into both halves.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.cls = layer
        self.patch = deepcopy(layer)
        self.register_load_state_dict_pre_hook(_copy_plain_weights)  # type: ignore[no-untyped-call]

    @property
    def in_features(self) -> int:
        return int(self.patch.in_features)  # type: ignore[arg-type]

    @property
    def out_features(self) -> int:
        return int(self.patch.out_features)  # type: ignore[arg-type]

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.cat([self.cls(tokens[:, :1]), self.patch(tokens[:, 1:])], 1)


def _copy_plain_weights(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in list(dict(module.patch.named_parameters())):  # type: ignore[union-attr]
        if (plain := state.pop(prefix + name, None)) is not None:
            state[f"{prefix}cls.{name}"] = plain
            state[f"{prefix}patch.{name}"] = plain.clone()


def specialize_cls_patch(model: nn.Module) -> nn.Module:
    """Doubles the norms of all blocks, the final norm, and qkv of the first third of the blocks, in place.

    Raises:
        InputError: the model has no CLS token in front, or its blocks do not have the layers of a plain pre-norm ViT.
    """
    name = type(model).__name__
    blocks: Any = getattr(model, "blocks", None)
    if getattr(model, "cls_token", None) is None or blocks is None:
        raise InputError(f"{name} has no CLS token; specialisation separates CLS from patches: choose a ViT with one")
    for place, block in enumerate(blocks):
        qkv = getattr(getattr(block, "attn", None), "qkv", None)
        biased = getattr(getattr(block, "attn", None), "q_bias", None) is not None  # the layer reads qkv.weight itself
        if not all(isinstance(getattr(block, norm, None), nn.Module) for norm in _NORMS[:2]) or biased or qkv is None:
            raise InputError(
                f"block {place} of {name} ({type(block).__name__}) is not that of a plain pre-norm ViT with one qkv layer; "
                f"specialisation is for those (vit_*, deit*)"
            )
    for place, block in enumerate(blocks):
        for norm in _NORMS[:2]:
            setattr(block, norm, SpecializedLayer(getattr(block, norm)))
        if place < len(blocks) // 3:
            block.attn.qkv = SpecializedLayer(block.attn.qkv)
    if isinstance(getattr(model, "norm", None), nn.LayerNorm):
        model.norm = SpecializedLayer(model.norm)  # type: ignore[arg-type]
    return model
