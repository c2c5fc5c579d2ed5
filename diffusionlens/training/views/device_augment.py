"""The colours of whole batches of views on the device: what `photometric` does with Pillow to one, with torch to many.

torchvision's own functions take one strength for a whole batch, and a batch here has one for each view, the order of the
adjustments included. So what depends on a view's number is written out; what does not is torchvision's. It differs from
Pillow by the rounding to 8 bits after each step only.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from diffusionlens.training.views.blur import blur
from diffusionlens.training.views.crops import MultiCrop
from diffusionlens.training.views.photometric import SOLARIZE_FROM, Draws, normalise


class DeviceAugment:
    """The second stage of a `MultiCrop`, on batches; with its first (`cut_tensors`) and the same seeds it makes the same
    views as a call of it."""

    def __init__(self, multi_crop: MultiCrop) -> None:
        self.multi_crop = multi_crop

    def __call__(self, views: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """Views as networks take them, float32 [B,3,S,S], normalised.

        Args:
            views: uint8 [B,3,S,S] each, in the order of `cut_tensors`, on the device.
            seeds: of the B samples.
        """
        crops = self.multi_crop
        draws = crops.photometric.draw(torch.stack([crops.uniforms(seed) for seed in seeds]))
        done: list[Tensor] = []
        for _, group in groupby(range(len(views)), key=lambda place: views[place].shape):
            places = list(group)  # views of one size go together
            pictures = torch.cat([views[place] for place in places]).float() / 255
            own = [draws[:, place] for place in places]
            coloured = normalise(recolour_batch(pictures, Draws.cat(own)), crops.mean, crops.std)
            done += coloured.chunk(len(places))
        return done


def recolour_batch(pictures: Tensor, draws: Draws) -> Tensor:
    """Views [N,3,H,W], values 0..1, with the colours that their `draws` [N] (on the CPU) make of them."""
    result = pictures.clone()
    for place in range(4):
        for operation, adjust in enumerate(_ADJUST):
            _apply(
                result,
                draws.jittered & (draws.order[:, place] == operation),
                adjust,
                draws.amounts[:, operation, None, None, None],
            )
    _apply(result, draws.grey, lambda some, _: transforms.rgb_to_grayscale(some, num_output_channels=3))
    _apply(result, draws.radius > 0, blur, draws.radius)
    # The middle between the two 8-bit values that solarisation parts.
    _apply(result, draws.solarized, lambda some, _: transforms.solarize(some, (SOLARIZE_FROM - 0.5) / 255))
    return result


def _apply(
    pictures: Tensor, chosen: Tensor, change: Callable[[Tensor, Tensor], Tensor], numbers: Tensor | None = None
) -> None:
    """Changes the `chosen` pictures in place, each by its own number. Which these are is worked out on the CPU, so that
    the CPU never waits for the device."""
    rows = chosen.nonzero()[:, 0]
    if len(rows):
        some = numbers[rows] if numbers is not None else rows
        here = rows.to(pictures.device, non_blocking=True)
        changed = change(pictures.index_select(0, here), some.to(pictures.device, non_blocking=True))
        pictures.index_copy_(0, here, changed)


def _brightness(pictures: Tensor, factors: Tensor) -> Tensor:
    return (pictures * factors).clamp(0, 1)


def _contrast(pictures: Tensor, factors: Tensor) -> Tensor:
    mean = transforms.rgb_to_grayscale(pictures).mean((1, 2, 3), keepdim=True)
    return torch.lerp(mean, pictures, factors).clamp(0, 1)


def _saturation(pictures: Tensor, factors: Tensor) -> Tensor:
    return torch.lerp(transforms.rgb_to_grayscale(pictures), pictures, factors).clamp(0, 1)


def _hue(pictures: Tensor, turns: Tensor) -> Tensor:
    """Hue shifted by `turns` [N,1,1,1] at constant saturation and value (of HSV)."""
    red, green, blue = pictures.split(1, 1)
    low, value = pictures.aminmax(dim=1, keepdim=True)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    # Each channel is a trapezoid of hue; in sixths of a turn, they are shifted against each other by two.
    shifts = torch.tensor([5.0, 3.0, 1.0], device=pictures.device)[:, None, None]
    away = (shifts + hue + 6 * turns) % 6
    return value - chroma * torch.minimum(away, 4 - away).clamp(0, 1)


_ADJUST = (_brightness, _contrast, _saturation, _hue)
