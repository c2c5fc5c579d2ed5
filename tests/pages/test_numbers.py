"""Numbers for people."""

import math

import pytest

from diffusionlens.pages.numbers import short, with_interval
from diffusionlens.results import Row


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (61.1111, "61.1"), (0.02346, "0.0235"), (257.0, "257"), (12345.6, "12346"), (1.5e7, "1.50e+07"), (-0.5, "-0.500"),
     (3e-6, "3.00e-06"), (math.nan, "–"), (99.96, "100.0")],
)  # fmt: skip
def test_short(value: float, text: str) -> None:
    assert short(value) == text


def test_intervals_have_the_decimals_of_the_value() -> None:
    row = Row("a", "m", 0.5256, 9, low=0.4694, high=0.58)
    assert with_interval(row) == "0.526 (0.469 to 0.580)"
    assert with_interval(Row("a", "m", 0.5, 9, low=math.nan, high=math.nan)) == "0.500"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (196.358, 196.301, 196.42, "196.36 (196.30 to 196.42)"),
        (0.99931, 0.99925, 0.99938, "0.9993 (0.9992 to 0.9994)"),
        (197.0, 197.0, 197.0, "197 (197 to 197)"),  # no width: nothing to tell apart
        (0.0, 0.0, 0.49, "0 (0.000 to 0.490)"),
        (0.0, 0.0, 49.0, "0 (0.0 to 49.0)"),
        (0.0, 0.0, 0.0, "0 (0 to 0)"),
        (197.0, 197.0 - 1e-9, 197.0 + 1e-9, "197 (197 to 197)"),  # rounding is no width
        (2e-6, 1.9999e-6, 2.1e-6, "2.0000e-06 (1.9999e-06 to 2.1000e-06)"),
    ],
)
def test_an_interval_that_has_a_width_shows_it(value: float, low: float, high: float, text: str) -> None:
    assert with_interval(Row("a", "m", value, 9, low=low, high=high)) == text
