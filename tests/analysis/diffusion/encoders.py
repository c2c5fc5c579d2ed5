"""Encoders whose diffusion is known, and pictures whose backgrounds say nothing of the label."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from diffusionlens import load_model
from diffusionlens.data.sample import Picture
from diffusionlens.models.backbone import Backbone
from tests.analysis.planted import backbone_of

PATCH = 4


class Mixing(nn.Module):
    """Adds `share` of the mean of all patches to every token."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.share * tokens[:, 1:].mean(1, keepdim=True)


class PlantedEncoder(nn.Module):
    """Tokens are patch statistics of the pixels (mean and contrast of colour, energy of both gradients), lifted to 16
    dimensions by a fixed random map; its blocks mix by known shares. CLS starts at zero."""

    def __init__(self, mixing: Sequence[float]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixing(share) for share in mixing)
        lift = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
        self.lift = nn.Parameter(lift)

    def forward_features(self, images: Tensor) -> Tensor:
        cells = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # [B,3,h,w,p,p]
        right = (cells[..., 1:] - cells[..., :-1]).abs().mean((1, 4, 5))
        down = (cells[..., 1:, :] - cells[..., :-1, :]).abs().mean((1, 4, 5))
        parts = [*cells.mean((4, 5)).unbind(1), *cells.std((4, 5)).unbind(1), right, down]
        tokens = torch.stack(parts, -1).flatten(1, 2) @ self.lift
        tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


def planted_encoder(*mixing: float, size: int = 64) -> Backbone:
    """A model of patches of 4 x 4 pixels whose block l adds the share `mixing[l - 1]` of the mean patch to every token."""
    return backbone_of(PlantedEncoder(mixing), width=16, size=size)


class _Alone(nn.Module):
    """An attention whose weights are the identity: every token gets its own value."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.qkv, self.proj = attention.qkv, attention.proj

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **_: object) -> Tensor:
        return self.proj(self.qkv(x).chunk(3, -1)[2])


def transformer_without_mixing() -> Backbone:
    """A ViT whose tokens never meet: every attention is the identity."""
    torch.manual_seed(0)
    backbone = load_model("timm:vit_tiny_patch16_224?pretrained=false&img_size=128")
    for block in backbone.blocks:
        block.attn = _Alone(block.attn)
    return backbone


class ColouredBoxes:
    """A box in the colour of its label anywhere on noise: `n` pictures of 64 x 64 pixels with `classes` labels."""

    label = "boxes"
    spec = "boxes:"
    provides = frozenset({"boxes", "labels"})
    mask_classes: Sequence[str] = ()

    def __init__(self, n: int = 80, classes: int = 4) -> None:
        self.n = n
        self.classes: Sequence[str] = [str(place) for place in range(classes)]
        self.skipped: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return self.n

    def name(self, index: int) -> str:
        return f"{index:04d}"

    def open(self, index: int) -> Picture:
        rng = np.random.default_rng((7, index))
        label = index % len(self.classes)
        image = rng.integers(60, 196, (74, 74, 3), dtype=np.uint8)
        side = 20
        x, y = (int(v) for v in rng.integers(9, 44, 2))
        colours = np.random.default_rng(3).integers(0, 256, (len(self.classes), 3))
        image[y : y + side, x : x + side] = colours[label]
        box = torch.tensor([[x, y, x + side, y + side]], dtype=torch.float32)
        flag = torch.zeros(1, dtype=torch.bool)
        return Picture(
            Image.fromarray(image), self.name(index), label, box, torch.tensor([label]), flag.clone(), flag.clone()
        )
