"""Cosines between all tokens of a picture as bytes: the lower triangle in even steps, each entry as what its neighbours do
not foretell, deflated.

Neighbouring patches are alike, so left + upper - upper left foretells most of an entry (the gradient predictor of lossless
image coding), and a triangle shrinks to some 60 %. Residuals are taken modulo the number of levels, so that even noise costs no
more than log2(levels) bits an entry: `most_bytes` holds for any tokens.
"""

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from diffusionlens.explorer.deflate import deflate
from diffusionlens.explorer.packed import PackedMap

Floats = NDArray[np.float64]

_LEVELS = (201, 101, 64)
"""Steps of 0.01, or of 0.02 or 0.032 where those would not fit: an error of 0.005, 0.01 or 0.016 at most."""
_SHARE = 0.76  # bytes an entry; 64 equally frequent levels take 6 bits in a Huffman code
_HEADS = 400  # bytes for the tables of the code


def pack_cosines(tokens: NDArray[np.floating]) -> PackedMap:
    """Cosines between all pairs of `tokens` [points, D] (CLS, where there is one, then the patches).

    Raises:
        ValueError: a token is not finite.
    """
    cosines = cosine_matrix(tokens)
    if not np.isfinite(cosines).all():
        raise ValueError("a token is not finite, and has no cosine")
    lower = np.tril_indices(len(cosines), -1)
    for levels in _LEVELS:
        steps = np.rint((cosines + 1) * (levels - 1) / 2).astype(np.int16)
        np.fill_diagonal(steps, levels - 1)
        foretold = np.zeros_like(steps)
        foretold[:, 1:] += steps[:, :-1]
        foretold[1:] += steps[:-1]
        foretold[1:, 1:] -= steps[:-1, :-1]
        data = deflate(((steps - foretold) % levels)[lower].astype(np.uint8).tobytes())
        if len(data) <= most_bytes(len(cosines)):
            break
    error = np.abs(steps * (2 / (levels - 1)) - 1 - cosines)[lower].max(initial=0.0)
    return PackedMap(levels, data, float(error))


def unpack_cosines(packed: PackedMap, points: int) -> Floats:
    """The stored cosines [points, points]; 1 on the diagonal."""
    residuals = np.zeros((points, points), np.int64)
    residuals[np.tril_indices(points, -1)] = np.frombuffer(zlib.decompress(packed.data), np.uint8)
    steps = np.full((points, points), packed.levels - 1)
    for row in range(1, points):
        above = steps[row - 1, :row]
        rise = residuals[row, :row] + np.diff(above, prepend=0)
        steps[row, :row] = np.cumsum(rise) % packed.levels
    steps = np.tril(steps) + np.tril(steps, -1).T
    return steps * (2 / (packed.levels - 1)) - 1


def cosine_matrix(tokens: NDArray[np.floating]) -> Floats:
    """Cosines [points, points] in float64; a zero token has cosine 0 with every other."""
    wide = tokens.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = wide / np.where(norms > 0, norms, 1)
    return np.clip(unit @ unit.T, -1, 1)


def most_bytes(points: int) -> int:
    """No map of so many points takes more."""
    return math.ceil(_SHARE * points * (points - 1) / 2) + _HEADS
