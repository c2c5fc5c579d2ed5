"""How many keys the teacher's queries attend to: entmax closes some attention to exactly 0, and training changes how much."""

import torch
from torch import Tensor, nn

from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.models.backbone import Origin
from diffusionlens.models.timm_adapter import backbone_of

_PICTURES = 8  # enough for a curve, and little against a step


def attention_support(teacher: nn.Module, images: Tensor) -> float:
    """Mean number of keys with a weight above 0, over layers, heads, queries and the first pictures of `images` [B,3,H,W].

    `teacher` is a ViT of timm's for pictures of that size.
    """
    counts: list[Tensor] = []

    def count(block: AttentionBlock) -> None:
        counts.append((block.weights > 0).sum(-1).float().mean())

    backbone = backbone_of("teacher", teacher, Origin("training", "diffusionlens", type(teacher).__name__))
    capture(backbone, images[:_PICTURES].float(), [count], layers=())
    return float(torch.stack(counts).mean())
