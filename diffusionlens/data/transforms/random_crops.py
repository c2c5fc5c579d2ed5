"""Random crops for training dense heads: the picture changes size and colour, its mask or depth map goes where it goes.

Every draw is a function of `seed` and of the place in the stream, so that neither the number of processes that read
pictures nor their order changes anything.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffusionlens.data.sample import IGNORE, Picture, Sample
from diffusionlens.data.transforms.random_colours import depth_colours, photometric_distortion

_LONGEST = 4  # mmseg's scale of 2048 x 512: the longer side is at most so many times the crop's
_TRIES = 10

NYU_BORDER = (45, 472, 43, 608)
"""Rows and columns (from, to) of NYUv2's 480 x 640 pixels inside the white border, which training looks at (BTS)."""
KB_SIZE = (352, 1216)
"""The lower middle of KITTI's pictures, which have slightly different sizes (the benchmark's crop)."""


@dataclass(frozen=True)
class SegmentationCrops:
    """DINOv2's training pictures for linear segmentation (mmsegmentation's pipeline).

    The shorter side is drawn from `ratio` times that of the crop, the longer one at most 4 times as long; a random window of
    `size` (H, W), drawn again up to ten times where one class has `most_of_one_class` of its labelled pixels or more; mirrored in
    `flip` of the cases; colours changed. What the crop has beyond the picture is the mean colour, and ignored in the mask.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    seed: int
    ratio: tuple[float, float] = (0.5, 2.0)
    most_of_one_class: float = 0.75
    flip: float = 0.5
    photometric: bool = True

    def __call__(self, picture: Picture, index: int) -> Sample:
        rng = np.random.default_rng((self.seed, index))
        image, mask = self._resized(picture, rng)
        top, left = self._window(image, mask, rng)
        rows, columns = (slice(start, start + side) for start, side in zip((top, left), self.size, strict=True))
        part = np.asarray(image)[rows, columns]
        labels = None if mask is None else mask[rows, columns]
        if rng.random() < self.flip:
            part, labels = part[:, ::-1], None if labels is None else labels.flip(1)
        colours = photometric_distortion(part, rng) if self.photometric else part
        return sample_of(picture, index, normalised(colours, self.size, self.mean, self.std), self.size, mask=labels)

    def _resized(self, picture: Picture, rng: np.random.Generator) -> tuple[Image.Image, Tensor | None]:
        width, height = picture.image.size
        short = min(self.size) * rng.uniform(*self.ratio)
        factor = min(short / min(width, height), _LONGEST * short / max(width, height))
        scaled = (max(1, int(width * factor + 0.5)), max(1, int(height * factor + 0.5)))
        image = picture.image.resize(scaled, Image.Resampling.BILINEAR)
        return image, None if picture.mask is None else nearest(picture.mask, (scaled[1], scaled[0]))

    def _window(self, image: Image.Image, mask: Tensor | None, rng: np.random.Generator) -> tuple[int, int]:
        room = (max(image.height - self.size[0], 0), max(image.width - self.size[1], 0))
        for _ in range(_TRIES + 1):
            top, left = (int(rng.integers(side + 1)) for side in room)
            if mask is None or self.most_of_one_class >= 1:
                break
            part = mask[top : top + self.size[0], left : left + self.size[1]]
            counts = torch.bincount(part[part != IGNORE].flatten().long())
            if (counts > 0).sum() > 1 and counts.max() / counts.sum() < self.most_of_one_class:
                break
        return top, left


@dataclass(frozen=True)
class DepthCrops:
    """DINOv2's training pictures for linear depth (the pipeline of the Monocular-Depth-Estimation-Toolbox, as BTS's).

    First the border (see `without_border`), then half of the pictures turned by up to `rotate` degrees, `flip` of them mirrored,
    a random window of `size` (H, W), and the colours of half of them changed (`brightness`: range of the factor). Depth
    stays that of a measured pixel, turned to the nearest; where there is none it is NaN.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    seed: int
    border: str = "none"
    rotate: float = 2.5
    flip: float = 0.5
    brightness: tuple[float, float] = (0.75, 1.25)

    def __call__(self, picture: Picture, index: int) -> Sample:
        rng = np.random.default_rng((self.seed, index))
        whole = without_border(picture, self.border)
        image, depth = whole.image, whole.depth
        angle = float(rng.uniform(-self.rotate, self.rotate)) if rng.random() < 0.5 else 0.0
        if angle:
            image = image.rotate(angle, Image.Resampling.BILINEAR)
            depth = None if depth is None else _turned(depth, angle)
        mirrored = rng.random() < self.flip
        room = (max(image.height - self.size[0], 0), max(image.width - self.size[1], 0))
        top, left = (int(rng.integers(side + 1)) for side in room)
        rows, columns = (slice(start, start + side) for start, side in zip((top, left), self.size, strict=True))
        part = np.asarray(image)[rows, columns]
        metres = None if depth is None else depth[rows, columns]
        if mirrored:
            part, metres = part[:, ::-1], None if metres is None else metres.flip(1)
        colours = depth_colours(part, self.brightness, rng) if rng.random() < 0.5 else part
        return sample_of(picture, index, normalised(colours, self.size, self.mean, self.std), self.size, depth=metres)


def without_border(picture: Picture, border: str) -> Picture:
    """The picture and its depth map without what a data set's users cut away: "nyu" (of 480 x 640 pixels), "kb", or "none"."""
    width, height = picture.image.size
    if border == "nyu" and (height, width) == (480, 640):
        top, bottom, left, right = NYU_BORDER
    elif border == "kb" and height >= KB_SIZE[0] and width >= KB_SIZE[1]:
        top, left = height - KB_SIZE[0], (width - KB_SIZE[1]) // 2
        bottom, right = height, left + KB_SIZE[1]
    else:
        return picture
    depth = None if picture.depth is None else picture.depth[top:bottom, left:right]
    return Picture(picture.image.crop((left, top, right, bottom)), picture.name, picture.label, depth=depth)


def nearest(values: Tensor, size: tuple[int, int]) -> Tensor:
    """A map [h,w] at `size` (H, W), every pixel the value of the nearest: classes and metres are never mixed."""
    rows, columns = (
        (((torch.arange(new) + 0.5) * (old / new)).long()).clamp(max=old - 1)
        for new, old in zip(size, values.shape, strict=True)
    )
    return values[rows[:, None], columns]


def normalised(
    image: NDArray[np.generic], size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """[h,w,3] of 0..255 as float32 [3,H,W] of `size`, normalised; where the picture does not reach, the mean colour."""
    part = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    canvas = torch.zeros(3, *size)
    canvas[:, : part.shape[1], : part.shape[2]] = (part - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[
        :, None, None
    ]
    return canvas


def sample_of(
    picture: Picture,
    index: int,
    image: Tensor,
    size: tuple[int, int],
    *,
    mask: Tensor | None = None,
    depth: Tensor | None = None,
) -> Sample:
    """A sample without boxes; `mask` and `depth` are filled up to `size` with what is not counted."""
    nothing = torch.zeros(0)
    return Sample(
        image=image,
        name=picture.name,
        index=index,
        original_size=(picture.image.height, picture.image.width),
        label=picture.label,
        boxes=torch.zeros(0, 4),
        category=nothing.long(),
        crowd=nothing.bool(),
        difficult=nothing.bool(),
        objects=0,
        box_area=nothing,
        mask=None if mask is None else _filled(mask, size, IGNORE),
        depth=None if depth is None else _filled(depth, size, torch.nan),
        notes=picture.notes,
    )


def _filled(values: Tensor, size: tuple[int, int], fill: float) -> Tensor:
    canvas = values.new_full(size, fill)
    canvas[: values.shape[0], : values.shape[1]] = values
    return canvas


def _turned(depth: Tensor, angle: float) -> Tensor:
    turned = Image.fromarray(depth.numpy()).rotate(angle, Image.Resampling.NEAREST, fillcolor=float("nan"))
    return torch.from_numpy(np.array(turned))
