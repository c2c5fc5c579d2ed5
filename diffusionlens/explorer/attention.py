"""Attention rows as bytes: every weight as one of a few levels of the square root of its share of the row's largest, deflated.

The square root keeps small weights apart. A weight of exactly 0 is the only one at level 0, so that sparse attention stays
told from dense. The number of levels is the largest that fits into `most_bytes`.
"""

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from diffusionlens.explorer.deflate import deflate
from diffusionlens.explorer.packed import PackedMap

Floats = NDArray[np.float64]

_LEVELS = (127, 63, 47, 31, 23, 15, 11, 7, 5, 3, 2)
_SHARE = 0.22  # bytes a weight; the last three levels (0, 1, 2) take 1.67 bits at most
_HEADS = 400  # bytes for the tables of the code
_RUNS = 0.6  # deflate may stay below the entropy of single levels by so much, where rows repeat


def pack_attention(weights: NDArray[np.floating]) -> PackedMap:
    """Weights [rows, columns] >= 0 of all queries (CLS, where there is one, then the patches) on all keys.

    The bytes hold the rows' largest weights (float32), then the levels.

    Raises:
        ValueError: a weight is negative or not finite.
    """
    wide = weights.astype(np.float64)
    if not (np.isfinite(wide).all() and (wide >= 0).all()):
        raise ValueError("an attention weight is negative or not finite")
    largest = wide.max(1, keepdims=True).astype("<f4")
    shares = np.sqrt(wide / np.where(largest > 0, largest, 1))
    limit = most_bytes(*wide.shape)
    for levels in _LEVELS:
        steps = np.where(wide > 0, np.clip(np.rint(shares * levels), 1, levels), 0).astype(np.uint8)
        if levels > _LEVELS[-1] and _least_bytes(steps) > limit:
            continue  # no need to try
        data = deflate(largest.tobytes() + steps.tobytes())
        if len(data) <= limit:
            break
    error = np.abs(_weights(steps, largest, levels) - wide).max(initial=0.0)
    return PackedMap(levels, data, float(error))


def unpack_attention(packed: PackedMap, rows: int) -> Floats:
    """The stored weights [rows, columns]."""
    raw = zlib.decompress(packed.data)
    largest = np.frombuffer(raw, "<f4", rows)[:, None]
    steps = np.frombuffer(raw, np.uint8, offset=4 * rows).reshape(rows, -1)
    return _weights(steps, largest, packed.levels)


def most_bytes(rows: int, columns: int) -> int:
    """No map of this size takes more."""
    return math.ceil(_SHARE * rows * columns) + 4 * rows + _HEADS


def _weights(steps: NDArray[np.uint8], largest: NDArray[np.float32], levels: int) -> Floats:
    return np.square(steps / levels) * largest


def _least_bytes(steps: NDArray[np.uint8]) -> float:
    """From the entropy of single levels, which a Huffman code can't go below: cheap, and spares most of the trials."""
    shares = np.bincount(steps.ravel()) / max(steps.size, 1)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum()) * steps.size / 8 * _RUNS
