"""Three named rules for which token norms are outliers."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BIN = 0.05  # width of a histogram bin in log norm, about 5 %
_SMOOTHING = 2.0  # standard deviation of the smoothing in bins
_DEPTH = 0.25  # a valley reaches down to this share of the lower of its two peaks
_RATIO = 1.5  # the outliers' mode has at least this many times the norm of the main mode
_LEAST = (0.001, 20)  # share and number of tokens without which a second mode is only a few strays


def valley_threshold(norms: Floats) -> float | None:
    """The norm at the valley between the main mode and a second mode of larger norms; None when there is only one.

    After Darcet et al. (arXiv 2309.16588), who read the cut-off from a bimodal histogram; here the histogram is of log
    norms, smoothed, and a second mode must be clear of the first and hold more than a few tokens.
    """
    positive = norms[norms > 0]
    if len(positive) < _LEAST[1]:
        return None
    logs = np.log(positive)
    low, high = float(logs.min()), float(logs.max())
    if high - low < np.log(_RATIO):
        return None
    bins = int(np.ceil((high - low) / _BIN)) + 1
    counts, edges = np.histogram(logs, bins, (low, low + bins * _BIN))
    smooth = _smooth(counts.astype(float))
    main = int(smooth.argmax())
    least = max(_LEAST[0] * len(positive), _LEAST[1])
    best: tuple[float, float] | None = None
    for peak in range(main + int(np.ceil(np.log(_RATIO) / _BIN)), bins):
        valley = main + int(smooth[main : peak + 1].argmin())
        beyond = counts[valley:].sum()
        if beyond >= least and smooth[valley] <= _DEPTH * smooth[peak] and (best is None or smooth[peak] > best[0]):
            # The middle of an empty valley, not its edge.
            level = np.flatnonzero(smooth[main : peak + 1] <= smooth[valley] + 1e-9) + main
            best = (float(smooth[peak]), float((edges[level[0]] + edges[level[-1] + 1]) / 2))
    return None if best is None else float(np.exp(best[1]))


def _smooth(counts: Floats) -> Floats:
    reach = int(4 * _SMOOTHING)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / _SMOOTHING) ** 2)
    padded = np.pad(counts, reach)
    return np.convolve(padded, kernel / kernel.sum(), mode="valid")


def mad_threshold(norms: Floats) -> float:
    """median + 6 * 1.4826 * MAD: six robust standard deviations."""
    median = float(np.median(norms))
    return median + 6 * 1.4826 * float(np.median(np.abs(norms - median)))
