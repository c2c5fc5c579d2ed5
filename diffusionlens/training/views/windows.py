"""Where random resized crops lie, as torchvision draws them, for all views of a picture at once.

torchvision's transform draws from torch's global random numbers and takes a third of a millisecond a view, more than cutting a
small view does.
"""

from math import log

import numpy as np
from numpy.typing import NDArray

ATTEMPTS = 10
UNIFORMS = 4 * ATTEMPTS
"""Uniform random numbers that a window takes."""

_ASPECT = (3 / 4, 4 / 3)


def draw_windows(
    uniforms: NDArray[np.float32], scales: NDArray[np.float64], width: int, height: int
) -> NDArray[np.int64]:
    """Windows [V,4] (left, top, right, bottom) in a picture of `width` x `height` pixels.

    A window's share of the area is uniform in its scale, the logarithm of its aspect in that of 3/4 to 4/3, its place among
    those inside the picture; the first of ten that fits is taken. When none fits, it is the largest central one of a
    permitted aspect.

    Args:
        uniforms: [V,40] in [0,1).
        scales: [V,2] from and to, at most 1.
    """
    share, aspect, across, down = uniforms.astype(np.float64).reshape(-1, 4, ATTEMPTS).transpose(1, 0, 2)
    area = (scales[:, :1] + share * (scales[:, 1:] - scales[:, :1])) * width * height
    ratio = np.exp(log(_ASPECT[0]) + aspect * (log(_ASPECT[1]) - log(_ASPECT[0])))
    wide, high = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    taken = np.arange(len(fits)), fits.argmax(1)
    left = np.floor(across * (width - wide + 1))[taken]
    top = np.floor(down * (height - high + 1))[taken]
    found = np.stack([left, top, left + wide[taken], top + high[taken]], 1)
    found[~fits.any(1)] = _central(width, height)
    return found.astype(np.int64)


def _central(width: int, height: int) -> tuple[int, int, int, int]:
    wide, high = width, height
    if width < height * _ASPECT[0]:
        high = round(width / _ASPECT[0])
    elif width > height * _ASPECT[1]:
        wide = round(height * _ASPECT[1])
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
