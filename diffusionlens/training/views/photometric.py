"""What happens to the colours of a view: which random numbers it takes, and how it is done to one picture, as in DINO.

The numbers are drawn apart from what is done with them, so that one picture on the CPU (here) and a batch on the device
(`device_augment`) can do the very same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

UNIFORMS = 13
"""Uniform random numbers that a view takes."""

SOLARIZE_FROM = 128
"""Values (0..255) from this one on are inverted by solarisation, as Pillow does by default."""

_ADJUST = (
    transforms.adjust_brightness,
    transforms.adjust_contrast,
    transforms.adjust_saturation,
    transforms.adjust_hue,
)


@dataclass(frozen=True)
class Photometric:
    """Strengths and probabilities for V views, in DINO's order: jitter, grey, blur, solarise.

    `jitter`: brightness, contrast, saturation (factors from 1 - x, at least 0, to 1 + x) and hue (a shift of up to x turns),
    in random order, all with `jitter_probability`. `blur` and `solarize`: one probability for each view. `radius` [V,2]: the
    blur's radius in pixels, from and to, uniform; Pillow means the standard deviation by it.
    """

    jitter: tuple[float, float, float, float]
    jitter_probability: float
    grey: float
    blur: Tensor
    radius: Tensor
    solarize: Tensor

    def draw(self, uniforms: Tensor) -> "Draws":
        """What the numbers [...,V,13], uniform in [0,1), mean for each view."""
        u = uniforms.unbind(-1)
        low = torch.tensor([max(0.0, 1 - strength) for strength in self.jitter[:3]] + [-self.jitter[3]])
        high = torch.tensor([1 + strength for strength in self.jitter[:3]] + [self.jitter[3]])
        radius = self.radius[:, 0] + u[11] * (self.radius[:, 1] - self.radius[:, 0])
        return Draws(
            jittered=u[0] < self.jitter_probability,
            order=torch.stack(u[1:5], -1).argsort(-1),
            amounts=low + torch.stack(u[5:9], -1) * (high - low),
            grey=u[9] < self.grey,
            radius=torch.where(u[10] < self.blur, radius, 0),
            solarized=u[12] < self.solarize,
        )


@dataclass(frozen=True)
class Draws:
    """What is done to each of some views [...]: `jittered`; `order` [...,4] in which brightness, contrast, saturation and
    hue (0 to 3) are adjusted; `amounts` [...,4] by which, in that naming; `grey`; `radius` of the blur, 0 for none;
    `solarized`."""

    jittered: Tensor
    order: Tensor
    amounts: Tensor
    grey: Tensor
    radius: Tensor
    solarized: Tensor

    @classmethod
    def cat(cls, several: Sequence["Draws"]) -> "Draws":
        """Several one after the other, along the first dimension."""
        return cls(**{part.name: torch.cat([getattr(one, part.name) for one in several]) for part in fields(cls)})

    def __getitem__(self, place: int | tuple[slice | int, ...]) -> "Draws":
        return replace(self, **{part.name: getattr(self, part.name)[place] for part in fields(self)})


def recolour(picture: Image.Image, draws: Draws) -> Image.Image:
    """One view with the colours that its `draws` (without dimensions) make of it, by Pillow, which DINO used."""
    if draws.jittered:
        amounts = draws.amounts.tolist()
        for operation in draws.order.tolist():
            picture = _ADJUST[operation](picture, amounts[operation])
    if draws.grey:
        picture = transforms.rgb_to_grayscale(picture, num_output_channels=3)
    if radius := float(draws.radius):
        picture = picture.filter(ImageFilter.GaussianBlur(radius))
    if draws.solarized:
        picture = transforms.solarize(picture, SOLARIZE_FROM)
    return picture


def normalise(picture: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Takes mean and standard deviation of the channels out of values 0..1, [...,3,H,W], in place."""
    return transforms.normalize(picture, list(mean), list(std), inplace=True)
