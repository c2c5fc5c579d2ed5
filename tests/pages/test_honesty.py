"""Sentences claim no more than their numbers carry, and name the rows they are made from."""

import pandas as pd
import pytest

from diffusionlens.pages.findings import Finding, findings
from diffusionlens.pages.numbers import typeset
from diffusionlens.results import Row, to_frame


def pib(
    value: float, low: float, high: float, chance: float, lift: tuple[float, float], n: int = 100, layer: int = 12
) -> list[Row]:
    return [
        Row("pib", "pib", value, n, layer, token="cls", low=low, high=high),
        Row("pib", "pib_chance", chance, n, layer, token="cls"),
        Row("pib", "pib_center", 70.0, n, layer, token="cls", low=60.0, high=79.0),
        Row("pib", "pib_lift", value - chance, n, layer, token="cls", low=lift[0], high=lift[1]),
    ]


def found(rows: list[Row]) -> list[Finding]:
    return findings(to_frame(rows, "m", "d"), ["m"], [])


def test_one_hit_in_one_picture_is_not_above_chance() -> None:
    """The bootstrap of a single picture has no width; Wilson's interval does."""
    [warning, sentence] = found(pib(100, 20.7, 100, 60, (40, 40), n=1))
    assert warning.warning
    assert "PiB (1)" in warning.text
    assert "can't be told apart from chance" in sentence.text


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(55, 65, "the two can't be told apart"), (40, 59.9, "and does better"), (79.1, 90, "and does worse")],
)
def test_the_centre_patch(low: float, high: float, words: str) -> None:
    assert words in found(pib((low + high) / 2, low, high, 30, (5, 40)))[0].text


def test_the_warning_of_few_pictures_starts_below_eight() -> None:
    assert found(pib(60, 50, 70, 30, (5, 40), n=7))[0].warning
    assert not found(pib(60, 50, 70, 30, (5, 40), n=8))[0].warning


def test_a_sentence_names_its_rows_and_its_figure() -> None:
    [sentence] = found(pib(60, 50, 70, 30, (5, 40), layer=3) + pib(50, 40, 60, 30, (5, 40)))
    assert sentence.figure == "pib_by_layer"
    used = {(row.metric, row.layer, row.value) for row in sentence.rows}
    assert {("pib", 12, 50.0), ("pib", 3, 60.0), ("pib_chance", 12, 30.0), ("pib_center", 12, 70.0)} <= used


def test_models_on_other_grids_are_compared_by_what_does_not_depend_on_the_grid() -> None:
    def rows(chance: float, tokens: int) -> list[Row]:
        spread = {
            "support": tokens,
            "density": 1.0,
            "effective_support": tokens / 2,
            "zero_share": 0.0,
            "entropy_normalized": 0.9,
        }
        return pib(60, 59, 61, chance, (1, 2)) + [
            Row("sparsity", metric, value, 9, 12, "mean", "patch>all", low=value - 0.01, high=value + 0.01)
            for metric, value in spread.items()
        ]

    def compare(other: list[Row]) -> str:
        frame = pd.concat([to_frame(rows(30, 197), "a", "d"), to_frame(other, "b", "d")])
        return " ".join(finding.text for finding in findings(frame, ["a", "b"], []) if finding.model is None)

    assert "told apart by PiB, the effective support" in compare(rows(30, 197))
    other = compare(rows(40, 257))
    assert "PiB above chance" in other
    assert "the normalised entropy of attention" in other
    assert "effective support" not in other


def test_effective_rank() -> None:
    def rank(*values: float) -> str:
        return found([Row("similarity", "effective_rank", value, 4096, layer) for layer, value in enumerate(values)])[
            0
        ].text

    assert "is 168 in layer 2; over the layers measured it runs from 147 (layer 0) to 222 (layer 1)" in rank(
        147, 222, 168
    )
    assert "148 in layer 2, as in every layer" in rank(148.1, 148.2, 148.0)


def test_gaps_are_passed_over() -> None:
    rows = [
        Row("similarity", "cls_patch_cos", float("nan"), 9, 11),
        Row("similarity", "cls_patch_cos", 0.5, 9, 10, low=0.4, high=0.6),
    ]
    assert "In layer 10 the mean cosine" in found(rows)[0].text


def test_untrained_models_in_the_plural() -> None:
    assert findings(to_frame([], "m", "d"), [], ["a", "b", "c"])[0].text.startswith(
        "a, b and c are untrained: the weights are random. Their"
    )


def test_typesetting_leaves_names_alone() -> None:
    assert typeset("vit-16 at -0.5 (-0.6 to -0.4), 95 %, 1e-5") == "vit-16 at −0.5 (−0.6 to −0.4), 95\u00a0%, 1e-5"
