"""The wording follows the intervals, exactly."""

import pandas as pd
import pytest

from diffusionlens.pages.findings import findings
from diffusionlens.pages.numbers import overlap
from diffusionlens.results import Row, to_frame


def pib(layer: int, value: float, low: float, high: float, lift: tuple[float, float, float]) -> list[Row]:
    return [
        Row("pib", "pib", value, 100, layer, token="cls", low=low, high=high),
        Row("pib", "pib_chance", value - lift[0], 100, layer, token="cls"),
        Row("pib", "pib_center", 70.0, 100, layer, token="cls"),
        Row("pib", "pib_lift", lift[0], 100, layer, token="cls", low=lift[1], high=lift[2]),
    ]


def text(rows: list[Row], model: str = "m") -> str:
    return " ".join(finding.text for finding in findings(to_frame(rows, model, "d"), [model], []))


@pytest.mark.parametrize(
    ("lift", "words"),
    [((20, 5, 35), "above chance"), ((-20, -35, -5), "below chance"), ((3, -5, 11), "can't be told apart from chance")],
)
def test_chance(lift: tuple[float, float, float], words: str) -> None:
    assert words in text(pib(12, 60, 50, 70, lift))


def test_a_fall_is_stated_only_when_the_intervals_are_apart() -> None:
    last = pib(12, 40, 31, 50, (5, 1, 9))
    apart = text(pib(3, 70, 60, 79, (35, 20, 45)) + last)
    assert "Layer 3 points better" in apart
    assert "falls by 30.0 points" in apart
    touching = text(pib(3, 55, 45, 65, (20, 9, 30)) + last)
    assert "Of the blocks measured none can be told to point better: the highest is layer 3" in touching
    assert "falls" not in touching
    assert "No layer" not in text(pib(3, 30, 21, 40, (1, 0, 2)) + last)  # the last is the highest


def test_rows_without_interval_are_not_told_apart() -> None:
    frame = to_frame([Row("a", "m", 1, 5), Row("a", "m", 2, 5, low=1.9, high=2.1)], "m", "d")
    assert overlap(*frame.itertuples())


def test_two_models() -> None:
    def rows(low: float, high: float) -> list[Row]:
        return [Row("similarity", "cls_patch_cos", (low + high) / 2, 9, 12, low=low, high=high)]

    def of(second: tuple[float, float]) -> list[str]:
        frame = pd.concat([to_frame(rows(0.1, 0.2), "a", "d"), to_frame(rows(*second), "b", "d")])
        return [finding.text for finding in findings(frame, ["a", "b"], []) if finding.model is None]

    assert of((0.3, 0.4)) == [
        "a against b, last layers: the cosine of CLS with patches is lower in a (0.150 against 0.350)."
    ]
    assert "can't be told apart by the cosine of CLS with patches" in of((0.15, 0.3))[0]


def test_rise_of_cls_patch_cosine() -> None:
    def rows(*bounds: tuple[float, float]) -> list[Row]:
        return [
            Row("similarity", "cls_patch_cos", (a + b) / 2, 9, layer, low=a, high=b)
            for layer, (a, b) in enumerate(bounds, 1)
        ]

    assert "higher than in any earlier block measured" in text(rows((0.1, 0.2), (0.25, 0.3), (0.5, 0.6)))
    assert "any earlier block measured" not in text(rows((0.1, 0.2), (0.45, 0.55), (0.5, 0.6)))
    assert "down from" in text(rows((0.7, 0.8), (0.5, 0.6)))
    assert "can't be told apart" in text(rows((0.4, 0.6), (0.5, 0.7)))


def test_outliers() -> None:
    none = [Row("norms", "outlier_share", 0.0, 9, 12, token="valley (unimodal)")]
    assert "one mode" in text(none)
    some = [
        Row("norms", "outlier_share", 0.024, 9, 12, token="valley"),
        Row("norms", "outlier_background_share", 0.9, 9, 12, token="valley"),
    ]
    assert "2.40 % of the patch tokens" in text(some)
    assert "90.0 % of those lie in the background" in text(some)


def test_untrained_models_are_said_to_be_untrained() -> None:
    frame = to_frame(pib(12, 60, 50, 70, (20, 5, 35)), "m", "d")
    first = findings(frame, ["m"], ["m"])[0]
    assert first.warning
    assert "say nothing about training" in first.text.replace("says", "say")
    assert not findings(frame, ["m"], [])[0].warning
