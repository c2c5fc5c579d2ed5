"""Sentences on leakage, spread and provenance: no stronger than their intervals."""

import pytest

from diffusionlens.report.findings import findings
from diffusionlens.results import Row, to_frame


def leakage(value: float, width: float, depth: list[float]) -> list[Row]:
    last = len(depth) - 1
    rows = [
        Row("diffusion", "leakage_full", 60.0, 80, last, low=50.0, high=70.0),
        Row("diffusion", "leakage_erased", 60.0 - value, 80, last, low=10.0, high=80.0),
        Row("diffusion", "leakage_chance", 12.5, 80, last),
    ]
    for layer, rise in enumerate(depth):
        rows.append(Row("diffusion", "leakage", value, 80, layer, low=value - width, high=value + width))
        rows.append(Row("diffusion", "leakage_depth", rise, 80, layer, low=rise - 5, high=rise + 5))
    return rows


@pytest.mark.parametrize(
    ("value", "width", "depth", "said", "unsaid"),
    [
        (
            30.0,
            5.0,
            [0, 2, 9, 20],
            "leakage 30.0 (25.0 to 35.0) points, above that of layer 0 from layer 2 on.",
            "can't",
        ),
        (30.0, 5.0, [0, 9, 2, 20], "from layer 3 on.", "can't"),
        (30.0, 5.0, [0, 2, 3, 4], "points.", "from layer"),
        (4.0, 5.0, [0, 9, 9, 9], "which can't be told apart from none.", "from layer"),
        (-30.0, 5.0, [0, 0, 0, 0], "nothing of diffusion", "from layer"),
    ],
)
def test_leakage(value: float, width: float, depth: list[float], said: str, unsaid: str) -> None:
    (found,) = findings(to_frame(leakage(value, width, depth), "m", "d"), ["m"], [])
    assert said in found.text
    assert unsaid not in found.text
    assert "chance 12.5 %" in found.text


@pytest.mark.parametrize(("far", "apart"), [(0.1, True), (0.38, False)])
def test_spread(far: float, apart: bool) -> None:
    rows = [
        Row("diffusion", "spread", value, 80, 3, token=token, low=value - 0.05, high=value + 0.05)
        for token, value in (("all", 0.3), ("ring 1", 0.4), ("ring 5+", far))
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "0.300 (0.250 to 0.350) of what exchanging the whole picture does: 0.400" in found.text
    assert ("can't be told apart" in found.text) != apart


def test_provenance_names_the_area() -> None:
    rows = [
        Row("diffusion", f"provenance_{name}", value, 8, 3, token="background", low=value - 0.1, high=value + 0.1)
        for name, value in (("self", 0.3), ("object", 0.5), ("object_area", 0.2))
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "50.0 (40.0 to 60.0) % in the boxes, which cover 20.0 % of the picture" in found.text
