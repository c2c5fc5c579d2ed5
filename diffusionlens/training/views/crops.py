"""Multi-crop: the views that DINO takes of a picture, every random number following from the sample's own seed."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from diffusionlens.errors import InputError
from diffusionlens.training.views.photometric import UNIFORMS, Draws, Photometric, normalise, recolour
from diffusionlens.training.views.windows import UNIFORMS as WINDOW_UNIFORMS
from diffusionlens.training.views.windows import draw_windows

_RADIUS_FOR = 224
"""Side in pixels of the views that DINO's blur radius is for."""


def sample_seed(run_seed: int, epoch: int, index: int) -> int:
    """The seed of picture `index` in an epoch, whichever process prepares it."""
    return int(np.random.SeedSequence((run_seed, epoch, index)).generate_state(1, np.uint64)[0])


@dataclass(frozen=True, kw_only=True)
class MultiCrop:
    """Global and local views of a picture, global ones first; the defaults are DINO's.

    Two stages, which a call takes one after the other: `cut` (random resized crop with bicubic interpolation, flip), and
    what happens to the colours (`draw` says what). For the second to run in batches on the device, workers call
    `cut_tensors` and the device `device_augment.DeviceAugment`: the same seeds then make the same views.

    `*_size`: sides in pixels. `*_scale`: share of the picture's area, from and to. `jitter`: brightness, contrast,
    saturation, hue. `blur` and `solarize`: probabilities for the first global view, the other global ones, the local ones.
    `blur_radius`: from and to, in pixels, for views of every size as in DINO; with `scale_blur` it is for views of 224
    pixels and in proportion for others.

    Raises:
        InputError: a value that makes no views.
    """

    global_size: int = 224
    global_scale: tuple[float, float] = (0.4, 1.0)
    global_count: int = 2
    local_size: int = 96
    local_scale: tuple[float, float] = (0.05, 0.4)
    local_count: int = 8
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_probability: float = 0.8
    grey: float = 0.2
    blur: tuple[float, float, float] = (1.0, 0.1, 0.5)
    blur_radius: tuple[float, float] = (0.1, 2.0)
    scale_blur: bool = False
    solarize: tuple[float, float, float] = (0.0, 0.2, 0.0)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if self.global_count < 1 or self.local_count < 0 or min(self.global_size, self.local_size) < 1:
            raise InputError(
                f"{self.global_count} global views of {self.global_size} and {self.local_count} local ones of "
                f"{self.local_size} pixels are no views of a picture; wanted positive numbers (0 local ones are possible)"
            )
        for name, least, most in (("global_scale", 0, 1), ("local_scale", 0, 1), ("blur_radius", 0, np.inf)):
            low, high = getattr(self, name)
            if not least < low <= high <= most:
                raise InputError(f"{name} ({low:g}, {high:g}) is no range; wanted {least} < from <= to <= {most}")
        for name in ("flip", "jitter_probability", "grey", "blur", "solarize"):
            if not all(0 <= value <= 1 for value in np.atleast_1d(getattr(self, name))):
                raise InputError(f"{name} {getattr(self, name)} is no probability; wanted 0 to 1")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise InputError(f"jitter {self.jitter} is out of range; wanted at least 0, and hue at most 0.5 turns")

    @cached_property
    def sizes(self) -> list[int]:
        """The side of every view in pixels."""
        return [self.global_size] * self.global_count + [self.local_size] * self.local_count

    @cached_property
    def photometric(self) -> Photometric:
        """What may happen to the colours of the views."""
        kinds = [0] + [1] * (self.global_count - 1) + [2] * self.local_count
        scales = torch.tensor(self.sizes) / _RADIUS_FOR if self.scale_blur else torch.ones(len(self.sizes))
        return Photometric(
            jitter=self.jitter,
            jitter_probability=self.jitter_probability,
            grey=self.grey,
            blur=torch.tensor(self.blur)[kinds],
            radius=scales[:, None] * torch.tensor(self.blur_radius),
            solarize=torch.tensor(self.solarize)[kinds],
        )

    def __call__(self, picture: Image.Image, seed: int) -> list[Tensor]:
        """The views as networks take them, float32 [3,S,S], normalised."""
        draws = self.draw(seed)
        views = [recolour(view, draws[place]) for place, view in enumerate(self.cut(picture, seed))]
        return [normalise(transforms.pil_to_tensor(view).float() / 255, self.mean, self.std) for view in views]

    def cut_tensors(self, picture: Image.Image, seed: int) -> list[Tensor]:
        """The views with the picture's own colours, uint8 [3,S,S]."""
        return [transforms.pil_to_tensor(view) for view in self.cut(picture, seed)]

    def cut(self, picture: Image.Image, seed: int) -> list[Image.Image]:
        """The views with the picture's own colours."""
        uniforms = _uniforms(_streams(seed)[0], len(self.sizes), WINDOW_UNIFORMS + 1).numpy()
        boxes = draw_windows(uniforms[:, 1:], self._scales, picture.width, picture.height)
        views = []
        for size, flip, box in zip(self.sizes, uniforms[:, 0] < self.flip, boxes.tolist(), strict=True):
            view = picture.crop(box).resize((size, size), Image.Resampling.BICUBIC)
            views.append(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view)
        return views

    def draw(self, seed: int) -> Draws:
        """What happens to the colours of each of the V views."""
        return self.photometric.draw(self.uniforms(seed))

    def uniforms(self, seed: int) -> Tensor:
        """The random numbers [V,13] that decide upon colours."""
        return _uniforms(_streams(seed)[1], len(self.sizes), UNIFORMS)

    @cached_property
    def _scales(self) -> NDArray[np.float64]:
        return np.array([self.global_scale] * self.global_count + [self.local_scale] * self.local_count)


def _streams(seed: int) -> list[int]:
    """Seeds for the two stages."""
    return [int(word) for word in np.random.SeedSequence(seed).generate_state(2)]


def _uniforms(seed: int, rows: int, columns: int) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))
