"""A two-block model whose keys, values and CLS attention are colours of patches, and pictures painted patch by patch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from diffusionlens.data.sample import Picture
from diffusionlens.models.backbone import Backbone
from tests.analysis.planted import backbone_of

PATCH, SIDE = 4, 8
SIZE = PATCH * SIDE
Box = tuple[int, int, int, int]
"""Rows from, columns from, rows to, columns to, in patches; ends exclusive."""


class _Attention(nn.Module):
    """Two heads of width 2 on tokens (red, green, blue, 1 for CLS); it is looked at, and changes no token.

    The last block's keys are (red, green | blue, 0); CLS asks the first head for red and the second for blue, patches ask both
    for green. Its values are the same for every patch, as are the keys of the first block.
    """

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, _ = tokens.shape
        red, green, blue, cls = tokens.unbind(-1)
        alike = torch.ones(batch, 2, count, 2)
        keys = (
            torch.stack([torch.stack([red, green], -1), torch.stack([blue, 0 * blue], -1)], 1) if self.last else alike
        )
        first = torch.stack([100 * cls, 100 * (1 - cls)], -1)
        second = torch.stack([100 * cls, 0 * cls], -1)
        return tokens + 0 * functional.scaled_dot_product_attention(torch.stack([first, second], 1), keys, alike).sum()


class _ColourModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Attention(last=False), _Attention(last=True)])
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward_features(self, images: Tensor) -> Tensor:
        colours = functional.avg_pool2d(images, PATCH).flatten(2).transpose(1, 2)  # [B,h*w,3]
        tokens = functional.pad(colours, (0, 1))
        cls = torch.tensor([0.0, 0, 0, 1]).expand(len(images), 1, 4)
        tokens = torch.cat([cls, tokens], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


def colour_model() -> Backbone:
    """Patches of 4 x 4 pixels in a grid of 8 x 8; a channel's 0 is -1, 255 is +1."""
    return backbone_of(_ColourModel(), width=4, size=SIZE, label="colours", heads=2)


@dataclass(frozen=True)
class Painting:
    """`ground`: the key of every patch (channels -1..1); `parts`: box -> key of the patches in it. `objects` and `crowds` are
    annotated; `outlines` are boxes of the mask's classes 1, 2, ..."""

    ground: tuple[float, float, float]
    parts: Mapping[Box, tuple[float, float, float]] = field(default_factory=dict)
    objects: Sequence[Box] = ()
    crowds: Sequence[Box] = ()
    outlines: Sequence[Box] = ()


class Paintings:
    """A source of `Painting`s by name; each has the model's size, so that no pixel is resampled (fit="squash")."""

    label = "paintings"
    spec = "paintings:"
    provides = frozenset({"boxes", "masks"})
    classes: Sequence[str] = ("thing",)
    mask_classes: Sequence[str] = ("background", "one", "two")

    def __init__(self, paintings: Mapping[str, Painting]) -> None:
        self.paintings = dict(paintings)
        self.skipped: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self.paintings)

    def name(self, index: int) -> str:
        return list(self.paintings)[index]

    def open(self, index: int) -> Picture:
        painting = self.paintings[self.name(index)]
        keys = np.tile(np.array(painting.ground), (SIDE, SIDE, 1))
        for (top, left, bottom, right), key in painting.parts.items():
            keys[top:bottom, left:right] = key
        image = ((keys + 1) * 127.5).round().astype(np.uint8).repeat(PATCH, 0).repeat(PATCH, 1)
        mask = torch.zeros(SIZE, SIZE, dtype=torch.int64)
        for value, (top, left, bottom, right) in enumerate(painting.outlines, 1):
            mask[top * PATCH : bottom * PATCH, left * PATCH : right * PATCH] = value
        boxes = [[PATCH * side for side in (b[1], b[0], b[3], b[2])] for b in (*painting.objects, *painting.crowds)]
        count = len(boxes)
        crowd = torch.arange(count) >= len(painting.objects)
        return Picture(
            Image.fromarray(image),
            self.name(index),
            boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            category=torch.zeros(count, dtype=torch.int64),
            crowd=crowd,
            difficult=torch.zeros(count, dtype=torch.bool),
            mask=mask,
        )
