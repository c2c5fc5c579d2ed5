"""95 % intervals: Wilson for proportions, seeded percentile bootstrap over pictures for everything else."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Z = 1.959963984540054
_RESAMPLES = 1000
_CHUNK = 100  # resamples at a time, so that memory stays bounded for 50,000 pictures


def wilson(successes: float, n: int) -> tuple[float, float]:
    """The Wilson score interval of a proportion, as shares in 0..1.

    Source: E. B. Wilson, JASA 22 (1927).
    """
    share = successes / n
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * np.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    low, high = max(0.0, float(centre - half)), min(1.0, float(centre + half))
    return (low if share > 0 else 0.0), (high if share < 1 else 1.0)  # rounding leaves 1e-18 there


def none_differs(n: int) -> float:
    """The largest difference, as a share in 0..1, of two paired proportions that `n` pictures of which none differs still allow.

    Source: T. Tango, Statistics in Medicine 17 (1998): the score interval of a paired difference, which is
    +-z^2 / (n + z^2) where no pair is discordant (and Wilson's upper bound of 0 of n). A bootstrap can't see what did not occur.
    """
    return _Z**2 / (n + _Z**2)


@lru_cache(maxsize=1)
def _resamples(pictures: int, seed: int) -> NDArray[np.uint8]:
    """How often every picture is drawn in every resample, [resamples,pictures]; kept, as a table asks for the same many times.

    A byte holds it: that one of 256 pictures or more is drawn more than 255 times has a probability below 1e-500.
    """
    rng = np.random.default_rng(seed)
    share = np.full(pictures, 1 / pictures)
    chunks = [rng.multinomial(pictures, share, size=_CHUNK).astype(np.uint8) for _ in range(0, _RESAMPLES, _CHUNK)]
    return np.concatenate(chunks)


def bootstrap_ratio(numerator: Floats, denominator: Floats, seed: int) -> tuple[Floats, Floats]:
    """Percentile interval of sum(numerator) / sum(denominator) per column, pictures (rows) resampled.

    A mean over pictures is the ratio with denominator 1. All columns share their resamples, so that differences
    between columns keep their pairing.

    Args:
        numerator, denominator: [pictures, columns]; a picture that does not count in a column is 0 in both.

    Returns:
        low and high, [columns]; NaN where fewer than two pictures count.
    """
    pictures, columns = numerator.shape
    if pictures == 0:
        return np.full(columns, np.nan), np.full(columns, np.nan)
    samples = np.empty((_RESAMPLES, columns))
    for start in range(0, _RESAMPLES, _CHUNK):
        counts = _resamples(pictures, seed)[start : start + _CHUNK].astype(np.float64)
        total = counts @ denominator
        with np.errstate(invalid="ignore", divide="ignore"):
            samples[start : start + _CHUNK] = np.where(total > 0, counts @ numerator / total, np.nan)
    low, high = np.full(columns, np.nan), np.full(columns, np.nan)
    counted = (denominator > 0).sum(0) >= 2
    if counted.any():
        low[counted], high[counted] = np.nanpercentile(samples[:, counted], [2.5, 97.5], axis=0)
    return low, high
