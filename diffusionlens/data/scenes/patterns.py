"""Shapes and textures of the built-in scenes: functions of coordinates, nothing else.

Shapes and object textures take (u, v), the object's own frame with radius about 1; backgrounds take picture coordinates
in 0..1, so that every pattern scales with the picture. All arrays are float32; a pattern's values are 0..1 or bool.

Pixels are made with additions, products and comparisons only (no BLAS, no vectorised sine), whose result does not depend
on the processor: a scene has the same bytes on every machine. The one exception, the star's angle, decides a mask only.
"""

from functools import cache
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # float32 in fact; NumPy types products with Python numbers as wider
Mask = NDArray[np.bool_]
Pattern = Floats | Mask

SHAPES = ("disc", "square", "triangle", "star", "ring", "cross", "crescent", "bow tie")
TEXTURES = ("stripes", "checker", "dots", "rings", "plain", "zigzag", "lattice", "speckle")
BACKGROUNDS = ("clouds", "slope", "stripes", "checker", "waves", "grain", "ripples", "patches")

_SPECKLES = 8  # cells a radius, about two pixels each in a picture of 64


def shape(kind: int, u: Floats, v: Floats) -> Mask:
    """Where the shape `SHAPES[kind]` is."""
    match SHAPES[kind]:
        case "disc":
            return u * u + v * v < 0.81
        case "square":
            return np.maximum(np.abs(u), np.abs(v)) < 0.75
        case "triangle":
            return (v < 0.6) & (np.float32(1.732) * np.abs(u) - v < 0.95)
        case "star":
            angle = np.arctan2(v, u) * np.float32(5 / (2 * pi))
            ray = np.abs(_fraction(angle) * 2 - 1)
            return u * u + v * v < (np.float32(0.45) + np.float32(0.6) * ray) ** 2
        case "ring":
            square = u * u + v * v
            return (square < 0.9) & (square > 0.2)
        case "cross":
            across, along = np.abs(u), np.abs(v)
            return (np.minimum(across, along) < 0.32) & (np.maximum(across, along) < 0.95)
        case "crescent":
            return (u * u + v * v < 0.95) & ((u - np.float32(0.55)) ** 2 + v * v > 0.45)
        case _:  # bow tie
            return (np.abs(u) < np.float32(0.15) + np.float32(0.65) * np.abs(v)) & (np.abs(v) < 0.85)


def texture(kind: int, u: Floats, v: Floats, frequency: float, phase: float, rng: np.random.Generator) -> Pattern:
    """The pattern `TEXTURES[kind]` with `frequency` cycles a radius."""
    a, b = u * np.float32(frequency) + np.float32(phase), v * np.float32(frequency) + np.float32(phase)
    match TEXTURES[kind]:
        case "stripes":
            return _bands(a)
        case "checker":
            return _bands(a) ^ _bands(b)
        case "dots":
            return (_fraction(a) - np.float32(0.5)) ** 2 + (_fraction(b) - np.float32(0.5)) ** 2 < 0.09
        case "rings":
            return _bands(np.sqrt(u * u + v * v) * np.float32(frequency))
        case "plain":
            return np.clip(np.float32(0.5) + u / 2, 0, 1)
        case "zigzag":
            return _bands(a + np.float32(0.5) * np.abs(_fraction(b) * 2 - 1))
        case "lattice":
            return (_fraction(a) < 0.22) | (_fraction(b) < 0.22)
        case _:  # speckle: cells of a fixed size in the object's frame, each light or dark at random
            cells = rng.random((32, 32), dtype=np.float32) < 0.5
            rows, columns = ((np.floor(axis * _SPECKLES).astype(np.int64) + 16) % 32 for axis in (v, u))
            return cells[rows, columns]


def background(kind: int, x: Floats, y: Floats, angle: float, frequency: float, rng: np.random.Generator) -> Pattern:
    """The pattern `BACKGROUNDS[kind]`, turned by `angle`, `frequency` cycles a picture."""
    right, down = np.float32(cos(angle)), np.float32(sin(angle))
    along, across = x * right + y * down, y * right - x * down
    cycles = np.float32(frequency)
    match BACKGROUNDS[kind]:
        case "clouds":
            return smooth_noise(rng, len(x), 3 + int(rng.integers(4)))
        case "slope":
            return (along + 1) / 2
        case "stripes":
            return _bands(along * cycles)
        case "checker":
            return _bands(along * cycles) ^ _bands(across * cycles)
        case "waves":
            return _wave(along * cycles)
        case "grain":
            return np.float32(0.6) * smooth_noise(rng, len(x), 12) + np.float32(0.4) * smooth_noise(rng, len(x), 4)
        case "ripples":
            return _wave(np.sqrt((x - right) ** 2 + (y - down) ** 2) * cycles)
        case _:  # patches
            return smooth_noise(rng, len(x), 6) < 0.5


def _fraction(values: Floats) -> Floats:
    return values - np.floor(values)  # much faster than % 1


def _bands(cycles: Floats) -> Mask:
    return _fraction(cycles) < 0.5


def _wave(cycles: Floats) -> Floats:
    """A wave of 0..1 with period 1 that keeps within 0.011 of the sine: a triangle, smoothed."""
    triangle = np.abs(_fraction(cycles) * 2 - 1)
    return triangle * triangle * (3 - 2 * triangle)


def smooth_noise(rng: np.random.Generator, size: int, knots: int) -> Floats:
    """Value noise: a random `knots` x `knots` grid, smoothly interpolated to `size` x `size`."""
    left, share = _interpolation(size, knots)
    grid = rng.random((knots, knots), dtype=np.float32)
    rows = grid[left] * (1 - share)[:, None] + grid[left + 1] * share[:, None]
    return rows[:, left] * (1 - share) + rows[:, left + 1] * share


@cache
def _interpolation(size: int, knots: int) -> tuple[NDArray[np.int64], Floats]:
    """For every pixel of a line: the knot to its left, and the share of the next one."""
    places = (np.arange(size) + 0.5) / size * (knots - 1)
    left = np.minimum(places.astype(np.int64), knots - 2)
    share = places - left
    return left, (share * share * (3 - 2 * share)).astype(np.float32)


@cache
def coordinates(size: int) -> tuple[Floats, Floats]:
    """x and y of every pixel centre, in 0..1."""
    steps = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    x, y = np.meshgrid(steps, steps)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)
