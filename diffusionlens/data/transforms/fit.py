"""What a model asks of a picture: one size, normalised. Boxes, mask and depth go exactly where the picture goes."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from diffusionlens.data.sample import IGNORE, Picture, Sample, UnreadablePicture
from diffusionlens.errors import InputError

Fit = Literal["crop", "squash", "pad"]

# The convention of ImageNet evaluation: scale so that 224 pixels of 256 remain in the middle.
_CROP_SHARE = (224, 256)

# 200 MB as RGB; a crop of 224 reaches it at an aspect of 1 : 1000.
_MOST_PIXELS = 2**26


@dataclass(frozen=True)
class _Placement:
    """The picture is scaled to `scaled` (H, W) and its (top, left) corner lands at `offset` of the result, which may be
    negative (cropped) or positive (padded)."""

    scaled: tuple[int, int]
    offset: tuple[int, int]


@dataclass(frozen=True)
class FitTransform:
    """Brings a Picture to `size` (H, W) and normalises it.

    `fit`: crop scales the picture so that it covers `size` x 256/224 (for a square size: shorter side to size x 256/224,
    as torchvision's Resize does) and cuts the centre; squash scales the whole picture to `size`; pad scales the whole
    picture into `size` and centres it on the model's mean colour, the border's mask being ignored.

    Raises:
        InputError: `fit` or `interpolation` is none.
        UnreadablePicture: when called, a picture so narrow that the scaled one would fill the memory.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fit: Fit = "crop"
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.fit not in get_args(Fit):
            raise InputError(f"'{self.fit}' is no way to fit a picture; wanted {', '.join(get_args(Fit))}")
        known = [mode.value for mode in InterpolationMode]
        if self.interpolation not in known:
            raise InputError(f"'{self.interpolation}' is no interpolation; wanted one of {', '.join(known)}")

    def __call__(self, picture: Picture, index: int) -> Sample:
        width, height = picture.image.size
        placed = self._placement(height, width)
        if placed.scaled[0] * placed.scaled[1] > _MOST_PIXELS:
            scaled = f"{placed.scaled[1]}x{placed.scaled[0]}"
            raise UnreadablePicture(picture.name, f"{width}x{height} is too narrow: {self.fit} would make it {scaled}")
        there, here = self._windows(placed)
        image = transforms.pil_to_tensor(self._scale(picture.image, placed.scaled))[:, there[0], there[1]].float() / 255
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        canvas = torch.zeros(3, *self.size)  # the mean colour, once normalised
        canvas[:, here[0], here[1]] = (image - mean) / std
        boxes, kept = self._boxes(picture.boxes, (height, width), placed)
        areas = (picture.boxes[:, 2] - picture.boxes[:, 0]) * (picture.boxes[:, 3] - picture.boxes[:, 1])
        return Sample(
            image=canvas,
            name=picture.name,
            index=index,
            original_size=(height, width),
            label=picture.label,
            boxes=boxes,
            category=picture.category[kept],
            crowd=picture.crowd[kept],
            difficult=picture.difficult[kept],
            objects=int((~(picture.crowd | picture.difficult)).sum()),
            box_area=(areas / (height * width))[kept],
            mask=None if picture.mask is None else self._map(picture.mask, placed, IGNORE),
            depth=None if picture.depth is None else self._map(picture.depth, placed, torch.nan),
            notes=picture.notes,
        )

    def _placement(self, height: int, width: int) -> _Placement:
        rows, columns = self.size
        if self.fit == "squash":
            return _Placement(self.size, (0, 0))
        if self.fit == "crop":
            kept, whole = _CROP_SHARE
            goal = (rows * whole // kept, columns * whole // kept)
            by_rows = goal[0] * width >= goal[1] * height  # the rows are what must be stretched to cover
        else:
            goal = self.size
            by_rows = goal[0] * width <= goal[1] * height
        # The other side is cut to whole pixels, as torchvision does.
        scaled = (goal[0], goal[0] * width // height) if by_rows else (goal[1] * height // width, goal[1])
        scaled = (max(scaled[0], 1), max(scaled[1], 1))
        # Centre, halves rounded as torchvision's CenterCrop rounds them.
        if self.fit == "crop":
            return _Placement(scaled, (-round((scaled[0] - rows) / 2), -round((scaled[1] - columns) / 2)))
        return _Placement(scaled, ((rows - scaled[0]) // 2, (columns - scaled[1]) // 2))

    def _scale(self, image: Image.Image, scaled: tuple[int, int]) -> Image.Image:
        return transforms.resize(image, list(scaled), InterpolationMode(self.interpolation), antialias=True)

    def _map(self, values: Tensor, placed: _Placement, fill: float) -> Tensor:
        """A mask or depth map, to the nearest pixel: values are never mixed."""
        scaled = transforms.resize(values[None], list(placed.scaled), InterpolationMode.NEAREST_EXACT)[0]
        there, here = self._windows(placed)
        result = scaled.new_full(self.size, fill)
        result[here] = scaled[there]
        return result

    def _windows(self, placed: _Placement) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """The rows and columns of the scaled picture that are kept, and where they lie in the result."""
        here = tuple(
            slice(max(start, 0), min(start + length, limit))
            for start, length, limit in zip(placed.offset, placed.scaled, self.size, strict=True)
        )
        there = tuple(
            slice(part.start - start, part.stop - start) for part, start in zip(here, placed.offset, strict=True)
        )
        return (there[0], there[1]), (here[0], here[1])

    def _boxes(self, boxes: Tensor, size: tuple[int, int], placed: _Placement) -> tuple[Tensor, Tensor]:
        """Boxes in the result, clipped to it, and which of them are left.

        In float64 and with the division last: what lies on a pixel's edge stays on it, so that a box that ends
        where the crop begins leaves no sliver.
        """
        (rows, columns), (top, left) = placed.scaled, placed.offset
        across = torch.tensor([columns, rows] * 2, dtype=torch.float64)
        whole = torch.tensor([size[1], size[0]] * 2, dtype=torch.float64)
        moved = boxes.double() * across / whole + torch.tensor([left, top] * 2, dtype=torch.float64)
        limits = torch.tensor([self.size[1], self.size[0]] * 2, dtype=torch.float64)
        clipped = moved.clamp(min=0).minimum(limits).float()
        kept = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
        return clipped[kept], kept
