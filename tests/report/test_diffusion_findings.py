"""Sentences on diffusion say no more than their intervals."""


from diffusionlens.report.findings import findings
from diffusionlens.results import Row, to_frame


def said(*rows: Row) -> str:
    return " ".join(finding.text for finding in findings(to_frame(list(rows), "m", "d"), ["m"], []))


def leakage(layer: int, value: float, low: float, high: float) -> list[Row]:
    return [
        Row("diffusion", "leakage", value, 90, layer, low=low, high=high),
        Row("diffusion", "leakage_full", 50.0, 90, layer, low=40.0, high=60.0),
        Row("diffusion", "leakage_erased", 50.0 - value, 90, layer, low=10.0, high=60.0),
        Row("diffusion", "leakage_chance", 12.5, 90, layer),
    ]


def test_an_interval_that_holds_zero_claims_nothing() -> None:
    text = said(*leakage(0, 0, 0, 0), *leakage(1, 9, 2, 16), *leakage(2, 3, -2, 8))
    assert "can't be told from zero" in text
    assert "above zero" not in text


def test_the_layer_where_leakage_starts_is_the_first_of_an_unbroken_run() -> None:
    text = said(*leakage(0, 4, 1, 7), *leakage(1, 0, -2, 2), *leakage(2, 9, 2, 16), *leakage(3, 19, 12, 26))
    assert "leakage is 19.0 (12.0 to 26.0) points, above zero from layer 2 on" in text


def test_leakage_below_zero_is_blamed_on_the_fill() -> None:
    assert "the filled boxes tell something themselves" in said(*leakage(1, -9, -16, -2))


def test_spread_says_where_half_is_reached_and_where_it_was_higher() -> None:
    rows = [
        Row("diffusion", "spread", value, 90, layer, token="all", low=value * 0.9, high=value * 1.1)
        for layer, value in enumerate((0.0, 0.2, 0.8, 0.3))
    ]
    text = said(*rows)
    assert "by 0.300 (0.270 to 0.330) of what exchanging the whole picture" in text
    assert "half of that is reached in layer 1, and layer 2 has more, 0.800" in text
    assert "told from nothing" in said(Row("diffusion", "spread", 0.0, 90, 1, token="all", low=0.0, high=0.0))
