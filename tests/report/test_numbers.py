"""Numbers for people."""

import math

import pytest

from diffusionlens.report.numbers import short, with_interval
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
