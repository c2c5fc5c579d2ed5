"""Debiased linear CKA between two representations of the same pictures."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 4
"""The unbiased estimator divides by n - 3."""


def debiased_cka(first: Floats, second: Floats) -> float:
    """Linear CKA with the unbiased estimator of HSIC; about 0 for independent representations whatever their width.

    Args:
        first, second: [n,D1] and [n,D2], the same n >= 4 items.

    Source: Kornblith et al., ICML 2019; the estimator of Song et al., JMLR 13 (2012). NaN when one has no variation.
    """
    # Centring changes nothing in exact arithmetic, and keeps a large common mean from eating the digits.
    gram_first, gram_second = (_gram(values - values.mean(0)) for values in (first, second))
    own_first, own_second = _hsic(gram_first, gram_first), _hsic(gram_second, gram_second)
    if own_first <= 0 or own_second <= 0:
        return float("nan")
    return _hsic(gram_first, gram_second) / float(np.sqrt(own_first * own_second))


def _gram(values: Floats) -> Floats:
    gram = values @ values.T
    np.fill_diagonal(gram, 0)
    return gram


def _hsic(first: Floats, second: Floats) -> float:
    n = len(first)
    total = (first * second).sum()
    total += first.sum() * second.sum() / ((n - 1) * (n - 2))
    total -= 2 / (n - 2) * (first.sum(0) @ second.sum(0))
    return float(total / (n * (n - 3)))
