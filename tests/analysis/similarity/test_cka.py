"""Debiased linear CKA against its definition and planted relations."""

import numpy as np
import pytest

from diffusionlens.analysis.similarity.cka import debiased_cka


def _hsic(first: np.ndarray, second: np.ndarray) -> float:
    """Song et al. (2012), equation 5, written out with loops over the items: a U-statistic over distinct (i,j,q,r)."""
    k, m = first @ first.T, second @ second.T
    n = len(k)
    total = 0.0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])
    return total / (n * (n - 1) * (n - 2) * (n - 3))


def test_equals_the_u_statistic_over_distinct_pictures() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(9, 3)) + 2
    second = first @ rng.normal(size=(3, 4)) + 0.5 * rng.normal(size=(9, 4))
    expected = _hsic(first, second) / np.sqrt(_hsic(first, first) * _hsic(second, second))
    assert debiased_cka(first, second) == pytest.approx(expected, rel=1e-9)


def test_same_up_to_rotation_scale_and_shift_is_one() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=(60, 16))
    turned = 7 * first @ np.linalg.qr(rng.normal(size=(16, 16)))[0] + 1e4
    assert debiased_cka(first, first) == pytest.approx(1, abs=1e-9)
    assert debiased_cka(first, turned) == pytest.approx(1, abs=1e-6)


def test_independent_wide_features_are_about_zero() -> None:
    # The biased estimator is near 1 here: 384 dimensions for 100 pictures.
    values = [
        debiased_cka(rng.normal(size=(100, 384)), rng.normal(size=(100, 384)))
        for rng in map(np.random.default_rng, range(20))
    ]
    assert abs(np.mean(values)) < 0.03
    assert np.abs(values).max() < 0.2


def test_no_variation_is_not_a_number() -> None:
    assert np.isnan(debiased_cka(np.ones((10, 4)), np.random.default_rng(0).normal(size=(10, 4))))
