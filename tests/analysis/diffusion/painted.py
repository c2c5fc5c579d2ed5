"""A linear encoder and painted pictures: every number of `diffusion` can be computed again in float64 from the pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from diffusionlens.data.sample import Picture
from diffusionlens.models.backbone import Backbone
from tests.analysis.diffusion.encoders import PATCH, Mixing
from tests.analysis.planted import backbone_of

SIZE, GRID = 32, 8
Box = tuple[int, int, int, int]
"""Pixels: left, top, right, bottom; ends exclusive."""


class _Colours(nn.Module):
    def __init__(self, mixing: Sequence[float], stem: float) -> None:
        super().__init__()
        self.stem = Mixing(stem)
        self.blocks = nn.ModuleList(Mixing(share) for share in mixing)
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward_features(self, images: Tensor) -> Tensor:
        tokens = functional.avg_pool2d(images, PATCH).flatten(2).transpose(1, 2)
        tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], 1)
        tokens = self.stem(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


def colour_encoder(*mixing: float, stem: float = 0.0) -> Backbone:
    """A patch's token is its mean colour, CLS is 0; block l adds the share `mixing[l - 1]` of the mean patch to all of them,
    and what is before the blocks the share `stem`."""
    return backbone_of(_Colours(mixing, stem), width=3, size=SIZE, label="colours")


@dataclass(frozen=True)
class Painted:
    """`image` uint8 [32,32,3]; of the boxes, those of `aside` are crowds or difficult by turns."""

    image: np.ndarray
    label: int
    boxes: Sequence[Box]
    aside: Sequence[Box] = ()

    @property
    def all_boxes(self) -> list[Box]:
        return [*self.boxes, *self.aside]

    @property
    def pixels(self) -> np.ndarray:
        """As the model sees it, float64 [32,32,3]."""
        return self.image / 127.5 - 1


class PaintedPictures:
    """A source; its pictures have the model's size, so that none is resampled (fit="squash")."""

    label = "painted"
    spec = "painted:"
    provides = frozenset({"boxes", "labels"})
    mask_classes: Sequence[str] = ()

    def __init__(self, pictures: Sequence[Painted]) -> None:
        self.pictures = list(pictures)
        self.classes: Sequence[str] = [str(place) for place in range(1 + max(one.label for one in pictures))]
        self.skipped: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return f"{index:03d}"

    def open(self, index: int) -> Picture:
        one = self.pictures[index]
        count, aside = len(one.all_boxes), torch.arange(len(one.all_boxes)) - len(one.boxes)
        return Picture(
            Image.fromarray(one.image),
            self.name(index),
            one.label,
            torch.tensor(one.all_boxes, dtype=torch.float32),
            torch.zeros(count, dtype=torch.int64),
            (aside >= 0) & (aside % 2 == 0),
            (aside >= 0) & (aside % 2 == 1),
        )


def noise(seed: int, low: int = 60, high: int = 196) -> np.ndarray:
    return np.random.default_rng((11, seed)).integers(low, high, (SIZE, SIZE, 3), dtype=np.uint8)


def in_boxes(boxes: Sequence[Box]) -> np.ndarray:
    """Pixels, bool [32,32]."""
    inside = np.zeros((SIZE, SIZE), bool)
    for left, top, right, bottom in boxes:
        inside[top:bottom, left:right] = True
    return inside


def erased(pixels: np.ndarray, boxes: Sequence[Box]) -> np.ndarray:
    """Every box in the mean colour of the pixels within 4 of it that lie in no box."""
    result, inside = pixels.copy(), in_boxes(boxes)
    for left, top, right, bottom in boxes:
        near = in_boxes([(max(left - 4, 0), max(top - 4, 0), right + 4, bottom + 4)]) & ~inside
        result[top:bottom, left:right] = pixels[near].mean(0)
    return result


def tokens(pixels: np.ndarray, mixing: Sequence[float]) -> np.ndarray:
    """Patch tokens of the last of the blocks `mixing`, [8,8,3]."""
    found = pixels.reshape(GRID, PATCH, GRID, PATCH, 3).mean((1, 3))
    for share in mixing:
        found = found + share * found.mean((0, 1))
    return found


def centres() -> np.ndarray:
    """(x, y) of every patch's centre, [8,8,2]."""
    along = PATCH * np.arange(GRID) + PATCH / 2
    return np.stack(np.meshgrid(along, along), -1)


def centre_in(boxes: Sequence[Box], around: int = 0) -> np.ndarray:
    """Patches whose centre lies in a box widened by `around` pixels, bool [8,8]."""
    x, y = centres()[..., 0], centres()[..., 1]
    inside = np.zeros((GRID, GRID), bool)
    for left, top, right, bottom in boxes:
        inside |= (x >= left - around) & (x < right + around) & (y >= top - around) & (y < bottom + around)
    return inside
