"""DINO's colour transforms written out in float64, pixel by pixel, and a picture to try them on."""

import colorsys
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffusionlens.data.scenes.source import SceneOptions, render

Floats = NDArray[np.float64]


@cache
def scene(index: int = 0, size: int = 64) -> Image.Image:
    return Image.fromarray(render(SceneOptions(n=64, seed=3, size=size), index).image)


def grey_of(picture: Floats) -> Floats:
    """ITU-R 601 luma, [H,W,1] of [H,W,3] in 0..1."""
    return (picture @ np.array([0.299, 0.587, 0.114]))[..., None]


def adjusted(picture: Floats, operation: int, amount: float) -> Floats:
    """Brightness, contrast, saturation (0, 1, 2: away from black, from the mean grey, from the pixel's own grey) or hue."""
    if operation == 3:
        turned = [
            colorsys.hsv_to_rgb((h + amount) % 1, s, v)
            for h, s, v in (colorsys.rgb_to_hsv(*pixel) for pixel in picture.reshape(-1, 3))
        ]
        return np.array(turned).reshape(picture.shape)
    anchor = (0.0, grey_of(picture).mean(), grey_of(picture))[operation]
    return np.clip(anchor + amount * (picture - anchor), 0, 1)


def solarized(picture: Floats) -> Floats:
    return np.where(picture >= 127.5 / 255, 1 - picture, picture)
