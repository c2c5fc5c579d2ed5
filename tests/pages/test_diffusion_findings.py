"""Sentences on leakage, spread and provenance: no stronger than their intervals."""

from dataclasses import replace

import pytest

from diffusionlens.pages.findings import findings
from diffusionlens.results import Row, to_frame


def leakage(values: list[float]) -> list[Row]:
    last = len(values) - 1
    rows = [
        Row("diffusion", "leakage_full", 60.0, 80, last, low=50.0, high=70.0),
        Row("diffusion", "leakage_erased", 30.0, 80, last, low=10.0, high=80.0),
        Row("diffusion", "leakage_chance", 12.5, 80, last),
    ]
    return rows + [
        Row("diffusion", "leakage", value, 80, layer, low=value - 5, high=value + 5)
        for layer, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "said", "unsaid"),
    [
        ([0, 2, 9, 20], "leakage is 20.0 (15.0 to 25.0) points, above zero from layer 2 on.", "can't"),
        ([0, 9, 2, 20], "from layer 3 on.", "can't"),
        ([9, 9, 9, 9], "above zero in every layer measured", "from layer"),
        ([0, 9, 9, 4], "which can't be told from zero", "from layer"),
        ([0, 0, 0, -30], "Below zero", "from layer"),
    ],
)
def test_leakage(values: list[float], said: str, unsaid: str) -> None:
    (found,) = findings(to_frame(leakage(values), "m", "d"), ["m"], [])
    assert said in found.text
    assert unsaid not in found.text
    assert "12.5 %" in found.text


@pytest.mark.parametrize(("value", "nothing"), [(0.3, False), (0.04, True)])
def test_spread(value: float, nothing: bool) -> None:
    rows = [
        Row("diffusion", "spread", height, 80, layer, token=token, low=height - 0.05, high=height + 0.05)
        for token, factor in (("all", 1.0), ("ring 1", 1.5), ("ring 5+", 0.5))
        for layer, height in ((1, 0.6 * value * factor), (2, value * factor))
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert f"by {value:.3f}"[:6] in found.text
    assert ("can't be told from nothing" in found.text) == nothing
    assert ("half of this spread is reached in layer 1" in found.text) != nothing


def test_provenance_names_the_area() -> None:
    rows = [
        Row(
            "diffusion",
            f"provenance_{name}{suffix}",
            share,
            8,
            3,
            token="background",
            low=share - 0.1,
            high=share + 0.1,
        )
        for name, value in (("self", 0.3), ("object", 0.5), ("rest", 0.2))
        for suffix, share in (("", value), ("_area", value / 2))
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "50.0 (40.0 to 60.0) % from the objects' boxes (25.0 % of the pixels)" in found.text
    assert "over 8 pictures." in found.text
    (one,) = findings(to_frame([replace(row, n=1, low=None, high=None) for row in rows], "m", "d"), ["m"], [])
    assert "over 1 picture." in one.text


def test_identical_tokens_are_said_to_be_so() -> None:
    rows = [replace(row, low=0.0, high=0.0) if row.metric == "leakage" else row for row in leakage([0.0])]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "points: the background's tokens are the same with the object and without." in found.text
    assert "can't be told" not in found.text


def test_spread_names_both_responses() -> None:
    values = {"spread": 0.25, "spread_object": 0.2, "spread_picture": 0.8}
    rows = [
        Row("diffusion", metric, value, 80, 6, token="all", low=value, high=value) for metric, value in values.items()
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "moves them: 0.200 of 0.800, as 1 - cosine; half" in found.text
