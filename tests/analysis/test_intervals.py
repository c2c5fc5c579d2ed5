"""Intervals against published and simulated values."""

import numpy as np
import pytest

from diffusionlens.analysis.intervals import bootstrap_ratio, none_differs, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3 (Wilson score).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_newcombe(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("n", [1, 48, 160, 1000])
def test_wilson_of_none_and_of_all_ends_at_the_end(n: int) -> None:
    assert wilson(0, n)[0] == 0
    assert wilson(n, n)[1] == 1


@pytest.mark.parametrize("n", [5, 164])
def test_none_that_differs_allows_what_tangos_score_does(n: int) -> None:
    """Without a discordant pair the score of a difference d is n d / sqrt(n d (1 - d)); at the bound it is 1.96."""
    bound = none_differs(n)
    assert n * bound / np.sqrt(n * bound * (1 - bound)) == pytest.approx(1.959964, abs=1e-6)
    assert bound == pytest.approx(wilson(0, n)[1])


def test_bootstrap_of_a_mean_has_the_width_of_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(5, 2, (400, 1))
    low, high = bootstrap_ratio(values, np.ones_like(values), seed=1)
    error = values.std(ddof=1) / 20
    assert low[0] == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert high[0] == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)


def test_bootstrap_covers_the_truth_as_often_as_it_says() -> None:
    """A ratio of sums with random denominators, 300 data sets at once as columns: about 95 % cover the true ratio."""
    rng = np.random.default_rng(0)
    denominator = rng.integers(1, 9, (80, 300)).astype(float)
    numerator = rng.binomial(denominator.astype(int), 0.3).astype(float)
    low, high = bootstrap_ratio(numerator, denominator, seed=0)
    assert 0.90 <= ((low <= 0.3) & (high >= 0.3)).mean() <= 0.985


def test_pictures_that_do_not_count_change_nothing() -> None:
    values = np.random.default_rng(0).normal(size=(50, 1))
    weight = np.ones_like(values)
    weight[::2] = 0
    low, high = bootstrap_ratio(values * weight, weight, seed=0)
    assert low[0] < values[1::2].mean() < high[0]


def test_one_picture_has_no_interval() -> None:
    low, high = bootstrap_ratio(np.array([[3.0], [0.0]]), np.array([[1.0], [0.0]]), seed=0)
    assert np.isnan(low[0])
    assert np.isnan(high[0])
