"""Threshold rules on norms whose modes are known."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import median_abs_deviation

from diffusionlens.analysis.norms.outliers import mad_threshold, valley_threshold

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def _mixed(
    rng: np.random.Generator, n: int, main: tuple[float, float], other: tuple[float, float], share: float
) -> Floats:
    count = round(share * n)
    return np.concatenate([rng.normal(*main, n - count), rng.normal(*other, count)])


@pytest.mark.parametrize(
    ("main", "other", "share"),
    [
        ((45, 10), (350, 80), 0.024),  # as DINOv2: a few, far away and wide
        ((40, 4), (75, 5), 0.05),  # close together
        ((40, 4), (90, 8), 0.45),  # nearly half
        ((2.0, 0.1), (4.5, 0.3), 0.01),  # another scale
    ],
)
@pytest.mark.parametrize("n", [6_000, 60_000])
def test_valley_parts_two_planted_modes(
    main: tuple[float, float], other: tuple[float, float], share: float, n: int
) -> None:
    for seed in range(5):
        norms = _mixed(np.random.default_rng(seed), n, main, other, share)
        found = valley_threshold(norms)
        assert found is not None
        truth = round(share * n) / n
        assert (norms > found).mean() == pytest.approx(truth, rel=0.02), f"seed {seed}, threshold {found}"


def test_valley_takes_the_middle_of_an_empty_gap() -> None:
    rng = np.random.default_rng(0)
    norms = np.concatenate([rng.uniform(40, 50, 5000), rng.uniform(800, 1000, 200)])
    # In log norm, half way between 50 and 800; the smoothing makes its edges soft.
    assert valley_threshold(norms) == pytest.approx(200, rel=0.15)


UNIMODAL: dict[str, Draw] = {
    "normal": lambda rng, n: np.abs(rng.normal(45, 6, n)),
    "uniform": lambda rng, n: rng.uniform(5, 100, n),
    "log-normal": lambda rng, n: rng.lognormal(3, 0.5, n),
    "wide log-normal": lambda rng, n: rng.lognormal(3, 1, n),
    "Pareto": lambda rng, n: 20 * (1 + rng.pareto(1, n)),
    "Pareto without a mean": lambda rng, n: 20 * (1 + rng.pareto(0.5, n)),
    "exponential": lambda rng, n: rng.exponential(20, n),
    "Student t, two degrees": lambda rng, n: 40 + 5 * np.abs(rng.standard_t(2, n)),
    "rounding error": lambda rng, n: 30 + 1e-5 * rng.normal(size=n),
    "a few strays": lambda rng, n: np.concatenate([rng.normal(45, 5, n - 15), rng.uniform(200, 500, 15)]),
    "few small norms": lambda rng, n: _mixed(rng, n, (45, 4), (5, 0.5), 0.05),
}


@pytest.mark.parametrize("draw", UNIMODAL.values(), ids=UNIMODAL.keys())
@pytest.mark.parametrize("n", [196, 3_000, 40_000])
def test_valley_invents_no_second_mode(draw: Draw, n: int) -> None:
    for seed in range(10):
        assert valley_threshold(draw(np.random.default_rng(seed), n)) is None, f"seed {seed}"


@pytest.mark.parametrize("norms", [np.full(500, 30.0), np.zeros(500), np.array([1.0, 100.0]), np.zeros(0)])
def test_valley_of_degenerate_norms_is_none(norms: Floats) -> None:
    assert valley_threshold(norms) is None


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_rules_scale_with_the_norms(factor: float) -> None:
    norms = _mixed(np.random.default_rng(1), 5000, (45, 10), (350, 80), 0.024)
    valley = valley_threshold(norms)
    assert valley is not None
    assert valley_threshold(factor * norms) == pytest.approx(factor * valley, rel=0.05)
    assert mad_threshold(factor * norms) == pytest.approx(factor * mad_threshold(norms))


def test_mad_is_six_robust_standard_deviations() -> None:
    norms = np.random.default_rng(2).lognormal(3, 0.5, 1001)
    # scipy's "normal" scale is 1 / 0.67449 = 1.4826.
    expected = np.median(norms) + 6 * median_abs_deviation(norms, scale="normal")
    assert mad_threshold(norms) == pytest.approx(expected, rel=1e-5)


def test_mad_sees_no_outliers_in_equal_norms_but_a_real_one() -> None:
    norms = np.full(1000, np.sqrt(384.0)) * (1 + 1e-7 * np.random.default_rng(0).normal(size=1000))
    norms[17] = 40
    assert (norms > mad_threshold(norms)).nonzero()[0].tolist() == [17]
