"""What a picture is, before (`Picture`) and after (`Sample`) the transform that a model asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

IGNORE = 255
"""Mask value that belongs to no class and is left out of every statistic."""


@dataclass(frozen=True)
class Picture:
    """One picture as its data set has it, annotations in pixels of the picture itself.

    `boxes` [K,4] float32 XYXY with continuous, exclusive ends (a box that covers the first pixel only is
    0,0,1,1); `category`, `crowd`, `difficult` have K entries. `mask` int64 [H,W], `depth` float32 [H,W] in
    metres with NaN = no reading; H,W are those of `image` (RGB). `notes` says what of the annotation was left out.
    """

    image: Image.Image
    name: str
    label: int | None = None
    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))
    category: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    crowd: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    difficult: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    mask: Tensor | None = None
    depth: Tensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One picture as a model sees it; boxes, mask and depth have gone exactly where the picture went.

    `image` float32 [3,H,W], normalised with the model's mean and std. `boxes` [K,4] XYXY pixels of the
    transformed picture, clipped to it; boxes that the crop cut away entirely are gone. `objects` counts the boxes before
    the crop, without crowds and difficult ones; `box_area` [K] is each box's share of the original picture. `index` is
    the picture's place in its data set.
    """

    image: Tensor
    name: str
    index: int
    original_size: tuple[int, int]
    label: int | None
    boxes: Tensor
    category: Tensor
    crowd: Tensor
    difficult: Tensor
    objects: int
    box_area: Tensor
    mask: Tensor | None = None
    depth: Tensor | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Batch:
    """Samples of one size, stacked: `images` [B,3,H,W], the rest as a list per picture."""

    images: Tensor
    samples: list[Sample]

    def __len__(self) -> int:
        return len(self.samples)


class PictureSource(Protocol):
    """A data set: a fixed order of names, each of which can be opened.

    `provides` names what its pictures carry, a subset of {"boxes", "masks", "labels", "depth", "parsing"}, the last for
    masks that name a class for everything, so that 0 is a class as any other and no background. `classes` are the names
    of `label`/`category` values where they are known, `mask_classes` those of the mask values 0, 1, ... (empty without
    masks; "background" counts; `IGNORE` is none of them); in a source without labels and boxes the two are the same.
    `skipped` is what was left out when the source was opened, as (file, reason). Opening a picture that cannot be decoded
    raises `UnreadablePicture`.
    """

    label: str
    spec: str
    provides: frozenset[str]
    classes: Sequence[str]
    mask_classes: Sequence[str]
    skipped: list[tuple[str, str]]

    def __len__(self) -> int: ...
    def name(self, index: int) -> str: ...
    def open(self, index: int) -> Picture: ...


class UnreadablePicture(Exception):  # noqa: N818  (it names what happened, not a fault of the program)
    """A picture or its annotation cannot be used; it is skipped, counted and named. Carries `file`, `reason`."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


Transform = Callable[[Picture, int], Sample]
