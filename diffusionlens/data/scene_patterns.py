"""Shapes and textures of the built-in scenes: functions of coordinates, nothing else.

Shapes and object textures take (u, v), the object's own frame with radius about 1; backgrounds take picture coordinates
in 0..1. All arrays are float32; a pattern's values are 0..1 or bool.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # float32 in fact; NumPy types products with Python numbers as wider
Mask = NDArray[np.bool_]
Pattern = Floats | Mask

SHAPES = ("disc", "square", "triangle", "star", "ring", "cross", "crescent", "bow tie")
TEXTURES = ("stripes", "checker", "dots", "rings", "plain", "zigzag", "lattice", "speckle")
BACKGROUNDS = ("clouds", "slope", "stripes", "checker", "waves", "grain", "ripples", "patches")


def shape(kind: int, u: Floats, v: Floats) -> Mask:
    """Where the shape `SHAPES[kind]` is."""
    if kind == 0:
        return u * u + v * v < 0.81
    if kind == 1:
        return np.maximum(np.abs(u), np.abs(v)) < 0.75
    if kind == 2:
        return (v < 0.6) & (np.float32(1.732) * np.abs(u) - v < 0.95)
    if kind == 3:
        angle = np.arctan2(v, u) * np.float32(5 / (2 * np.pi))
        ray = np.abs((angle % 1) * 2 - 1)
        return u * u + v * v < (np.float32(0.45) + np.float32(0.6) * ray) ** 2
    if kind == 4:
        square = u * u + v * v
        return (square < 0.9) & (square > 0.2)
    if kind == 5:
        across, along = np.abs(u), np.abs(v)
        return (np.minimum(across, along) < 0.32) & (np.maximum(across, along) < 0.95)
    if kind == 6:
        return (u * u + v * v < 0.95) & ((u - np.float32(0.55)) ** 2 + v * v > 0.45)
    return (np.abs(u) < 0.15 + 0.65 * np.abs(v)) & (np.abs(v) < 0.85)


def texture(kind: int, u: Floats, v: Floats, frequency: float, phase: float, rng: np.random.Generator) -> Pattern:
    """The pattern `TEXTURES[kind]` with `frequency` cycles a radius."""
    a, b = u * np.float32(frequency) + np.float32(phase), v * np.float32(frequency) + np.float32(phase)
    if kind == 0:
        return a % 1 < 0.5
    if kind == 1:
        return (a % 1 < 0.5) ^ (b % 1 < 0.5)
    if kind == 2:
        return (a % 1 - np.float32(0.5)) ** 2 + (b % 1 - np.float32(0.5)) ** 2 < 0.09
    if kind == 3:
        return np.sqrt(u * u + v * v) * np.float32(frequency) % 1 < 0.5
    if kind == 4:
        return np.clip(np.float32(0.5) + u / 2, 0, 1)
    if kind == 5:
        return (a + np.float32(0.5) * np.abs((b % 1) * 2 - 1)) % 1 < 0.5
    if kind == 6:
        return (a % 1 < 0.22) | (b % 1 < 0.22)
    # Cells of a fixed size in the object's frame, each light or dark at random.
    cells = rng.random((64, 64), dtype=np.float32) < 0.5
    rows, columns = ((np.floor(axis * 6).astype(np.int64) + 32) % 64 for axis in (v, u))
    return cells[rows, columns]


def background(kind: int, x: Floats, y: Floats, angle: float, frequency: float, rng: np.random.Generator) -> Pattern:
    """The pattern `BACKGROUNDS[kind]`, turned by `angle`, `frequency` cycles a picture."""
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    along, across = x * cos + y * sin, y * cos - x * sin
    cycles = np.float32(frequency)
    if kind == 0:
        return smooth_noise(rng, len(x), 3 + int(rng.integers(4)))
    if kind == 1:
        return (along + 1) / 2
    if kind == 2:
        return along * cycles % 1 < 0.5
    if kind == 3:
        return (along * cycles % 1 < 0.5) ^ (across * cycles % 1 < 0.5)
    if kind == 4:
        return np.float32(0.5) + np.sin(along * cycles * np.float32(2 * np.pi)) / 2
    if kind == 5:
        return np.float32(0.6) * smooth_noise(rng, len(x), 12) + np.float32(0.4) * smooth_noise(rng, len(x), 4)
    if kind == 6:
        far = np.sqrt((x - cos) ** 2 + (y - sin) ** 2)
        return np.float32(0.5) + np.sin(far * cycles * np.float32(2 * np.pi)) / 2
    return smooth_noise(rng, len(x), 6) < 0.5


def smooth_noise(rng: np.random.Generator, size: int, knots: int) -> Floats:
    """Value noise: a random `knots` x `knots` grid, smoothly interpolated to `size` x `size`."""
    weights = _interpolation(size, knots)
    return weights @ rng.random((knots, knots), dtype=np.float32) @ weights.T


@cache
def _interpolation(size: int, knots: int) -> Floats:
    places = (np.arange(size) + 0.5) / size * (knots - 1)
    left = np.minimum(places.astype(int), knots - 2)
    share = places - left
    share = share * share * (3 - 2 * share)
    weights = np.zeros((size, knots), np.float32)
    weights[np.arange(size), left], weights[np.arange(size), left + 1] = 1 - share, share
    return weights


@cache
def coordinates(size: int) -> tuple[Floats, Floats]:
    """x and y of every pixel centre, in 0..1."""
    steps = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    x, y = np.meshgrid(steps, steps)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)
