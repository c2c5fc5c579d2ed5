"""Two rules for which token norms are outliers; the third, a fixed cut-off, needs no finding."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BIN = 0.01  # width of a histogram bin in log norm, about 1 %
_BANDWIDTHS = (0.04, 0.1)  # of the smoothing in log norm: narrow modes close together, wide modes of few tokens
_DEPTH = 0.25  # a valley goes down to this share of the lower of its two peaks
_RATIO = 1.5  # the outliers' peak has at least this many times the norm of the main peak
_LEAST = (0.001, 20)  # share and number of tokens without which a second mode is only a few strays
_MOST = 0.5  # outliers are the minority
_SIGNIFICANCE = 4.0  # standard errors (Poisson) by which the lower peak's token count exceeds the valley's
_RANGE = np.log(1e6)  # of the histogram around the median; no mode is looked for beyond it


def valley_threshold(norms: Floats) -> float | None:
    """The norm at the valley between the main mode and a second mode of larger norms; None when there is only one.

    After Darcet et al. (arXiv 2309.16588), who read the cut-off from a bimodal histogram. Here the histogram is of log
    norms, smoothed, and its second mode must be clear of the first, hold more than a few tokens and fewer than half,
    and be deeper parted from the first than chance would have it.
    """
    logs = np.log(norms[norms > 0])
    if len(logs) < _LEAST[1]:
        return None
    middle = float(np.median(logs))
    logs = logs[np.abs(logs - middle) <= _RANGE]
    low, high = float(logs.min()), float(logs.max())
    if high - low < np.log(_RATIO):
        return None
    margin = 4 * _BANDWIDTHS[-1]
    bins = int(np.ceil((high - low + 2 * margin) / _BIN))
    start = low - margin
    counts = np.histogram(logs, bins, (start, start + bins * _BIN))[0].astype(float)
    for bandwidth in _BANDWIDTHS:
        valley = _valley(counts, _smoothed(counts, bandwidth / _BIN), bandwidth)
        if valley is not None:
            return float(np.exp(start + valley * _BIN))
    return None


def _valley(counts: Floats, density: Floats, bandwidth: float) -> float | None:
    """Place of the valley in bins from the start; `density` are tokens a bin, smoothed."""
    peak_before, peak_after = _running_argmax(density), len(density) - 1 - _running_argmax(density[::-1])[::-1]
    lower_peak = np.minimum(density[peak_before], density[peak_after])
    beyond = counts[::-1].cumsum()[::-1]
    # Tokens that a Gaussian window of this bandwidth effectively averages over, at the peak and in the valley.
    window = 2 * np.sqrt(np.pi) * bandwidth / _BIN
    error = np.sqrt(window * np.maximum(lower_peak + density, 1e-12))
    least = max(_LEAST[0] * counts.sum(), _LEAST[1])
    parts = (
        (density <= _DEPTH * lower_peak)
        & ((peak_after - peak_before) * _BIN >= np.log(_RATIO))
        & (window * (lower_peak - density) >= _SIGNIFICANCE * error)
        & (beyond >= least)
        & (beyond <= _MOST * counts.sum())
    )
    if not parts.any():
        return None
    # The valley before the highest second peak, at its lowest; the middle of an empty one, not its edge.
    highest = parts & (density[peak_after] >= density[peak_after][parts].max() * (1 - 1e-9))
    lowest = np.flatnonzero(highest & (density <= density[highest].min() + 1e-6))
    return float(lowest[0] + lowest[-1] + 1) / 2


def _running_argmax(values: Floats) -> NDArray[np.int64]:
    """Place of the largest of values[0..i], for every i."""
    running = np.maximum.accumulate(values)
    places = np.where(values == running, np.arange(len(values)), 0)
    return np.maximum.accumulate(places)


def _smoothed(counts: Floats, bandwidth: float) -> Floats:
    """`counts` through a Gaussian of standard deviation `bandwidth` bins."""
    reach = int(4 * bandwidth)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / bandwidth) ** 2)
    return np.convolve(counts, kernel / kernel.sum(), mode="same")


def mad_threshold(norms: Floats) -> float:
    """median + 6 * 1.4826 * MAD: six robust standard deviations.

    The MAD is at least 1e-6 of the median, the resolution of float32, so that equal norms have no outliers.
    """
    median = float(np.median(norms))
    return median + 6 * 1.4826 * max(float(np.median(np.abs(norms - median))), 1e-6 * median)
