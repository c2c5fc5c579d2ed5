"""Pillow's Gaussian blur for a batch, each picture with its own radius.

Pillow blurs three times with a box of fractional width, whose variance in sum is the radius squared; for radii under one
pixel, as many of DINO's are, that is far from the sampled Gaussian that torchvision uses. Source: Gwosdek et al., Theoretical
foundations of Gaussian convolution by extended box filtering, SSVM 2011; Pillow's BoxBlur.c.
"""

import torch
from torch import Tensor

_PASSES = 3


def blur(pictures: Tensor, radius: Tensor) -> Tensor:
    """Pictures [N,C,H,W] blurred by `radius` [N] > 0, the standard deviation in pixels; the border is continued outwards."""
    rows, columns = (blur_matrix(radius, length) for length in pictures.shape[-2:])
    with torch.autocast(pictures.device.type, enabled=False):
        return rows[:, None] @ pictures @ columns.mT[:, None]


def blur_matrix(radius: Tensor, length: int) -> Tensor:
    """The blur of a line of `length` pixels as a matrix [N,length,length], a product of three box blurs."""
    variance = radius**2 / _PASSES
    # The box has weight 1 out to `whole` pixels on both sides, and weight `part` on the pixel beyond.
    whole = ((12 * variance + 1).sqrt() / 2 - 0.5).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    # As every pixel outside is that at the border, entry (i, j) is what the box at i covers of j's share of the line.
    places = torch.arange(length, device=radius.device)
    covered = _covered(places[None, :] - places[:, None], whole, part)
    before = _covered(places[None, :] - places[:, None] - 1, whole, part)
    box = covered - before
    box[..., 0] = covered[..., 0]
    box[..., -1] = 1 - before[..., -1]
    return torch.linalg.matrix_power(box, _PASSES)


def _covered(offsets: Tensor, whole: Tensor, part: Tensor) -> Tensor:
    """The share of a box's weight at `offsets` [L,L] or less from its middle, [N,L,L]."""
    whole, part = whole[:, None, None], part[:, None, None]
    full = (offsets + whole + 1).clamp(min=0).minimum(2 * whole + 1)
    partly = part * ((offsets >= -whole - 1).float() + (offsets >= whole + 1).float())
    return (full + partly) / (2 * whole + 1 + 2 * part)
