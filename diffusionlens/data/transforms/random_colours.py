"""Random colours of training pictures, as mmsegmentation and BTS change them. Arrays are [H,W,3] of 0..255."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.generic]
_HUE = 18 / 180  # OpenCV counts half degrees of 360
_FULL = 255


def photometric_distortion(image: Pixels, rng: np.random.Generator) -> NDArray[np.uint8]:
    """mmsegmentation's PhotoMetricDistortion: each with probability one half, brightness (up to 32 of 255 more or less), contrast
    (0.5 to 1.5 times, before or after the colours), saturation (0.5 to 1.5 times), hue (up to a tenth of the circle)."""
    pixels = _clipped(image)
    if rng.random() < 0.5:
        pixels = _clipped(pixels.astype(np.float32) + rng.uniform(-32, 32))
    early = rng.random() < 0.5
    if early and rng.random() < 0.5:
        pixels = _clipped(pixels.astype(np.float32) * rng.uniform(0.5, 1.5))
    saturation = rng.uniform(0.5, 1.5) if rng.random() < 0.5 else None
    hue = rng.uniform(-_HUE, _HUE) if rng.random() < 0.5 else None
    if saturation is not None or hue is not None:
        pixels = _recoloured(pixels, saturation, hue)
    if not early and rng.random() < 0.5:
        pixels = _clipped(pixels.astype(np.float32) * rng.uniform(0.5, 1.5))
    return pixels


def depth_colours(image: Pixels, brightness: tuple[float, float], rng: np.random.Generator) -> NDArray[np.float32]:
    """BTS's colours, on a scale of 0..1: a power of 0.9 to 1.1, a factor of `brightness`, and one of 0.9 to 1.1 a channel."""
    pixels = (image.astype(np.float32) / _FULL) ** np.float32(rng.uniform(0.9, 1.1))
    pixels = pixels * np.float32(rng.uniform(*brightness)) * rng.uniform(0.9, 1.1, 3).astype(np.float32)
    return (pixels.clip(0, 1) * _FULL).astype(np.float32)


def _clipped(values: Pixels) -> NDArray[np.uint8]:
    return np.clip(values, 0, _FULL).astype(np.uint8)


def _recoloured(pixels: NDArray[np.uint8], saturation: float | None, hue: float | None) -> NDArray[np.uint8]:
    coloured = np.array(Image.fromarray(np.ascontiguousarray(pixels)).convert("HSV"))
    if saturation is not None:
        coloured[..., 1] = _clipped(coloured[..., 1].astype(np.float32) * saturation)
    if hue is not None:
        coloured[..., 0] = (coloured[..., 0].astype(np.int64) + round(hue * 256)) % 256
    height, width, _ = coloured.shape
    return np.array(Image.frombytes("HSV", (width, height), coloured.tobytes()).convert("RGB"))
