"""Leakage and spread where the truth is known: planted mixing, no mixing, and backgrounds that tell the class or do not."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch

from diffusionlens import measure
from diffusionlens.analysis.diffusion.leakage import leakage_series, read_labels
from diffusionlens.analysis.intervals import bootstrap_ratio
from diffusionlens.data.sample import PictureSource
from diffusionlens.models.backbone import Backbone
from tests.analysis.diffusion.encoders import ColouredBoxes, planted_encoder, transformer_without_mixing

QUICK = ["diffusion.provenance=none"]


def measured(model: Backbone, data: str | PictureSource, *options: str, **more: object) -> pd.DataFrame:
    found = measure(model, data, analyses="diffusion", options=[*QUICK, *options], **more)  # type: ignore[arg-type]
    assert found is not None
    return found.measurement.results


def row(results: pd.DataFrame, metric: str, layer: int, token: str = "") -> pd.Series:
    chosen = results[(results["metric"] == metric) & (results["layer"] == layer) & (results["token"] == token)]
    assert len(chosen) == 1
    return chosen.iloc[0]


def test_leakage_and_spread_rise_with_the_planted_share() -> None:
    results = measured(planted_encoder(0.0, 0.1, 0.5), ColouredBoxes())
    leakage = [row(results, "leakage", layer) for layer in range(4)]
    spread = [row(results, "spread", layer, "all") for layer in range(4)]
    for nothing in (*leakage[:2], *spread[:2]):
        assert nothing["low"] <= 0 <= nothing["high"]
    assert 0 < leakage[2]["low"] < leakage[2]["high"] < leakage[3]["low"]
    assert 0 < spread[2]["low"] < spread[2]["high"] < spread[3]["low"]
    for layer in range(4):  # the erased picture's background tells nothing
        erased = row(results, "leakage_erased", layer)
        assert erased["low"] <= row(results, "leakage_chance", layer)["value"] == 25 <= erased["high"]
        assert row(results, "leakage_depth", layer)["value"] == leakage[layer]["value"] - leakage[0]["value"]


def test_the_same_pictures_probed_with_noise_of_their_own_have_no_leakage() -> None:
    """The null that identical tokens can't test: both sides differ by noise, and the interval contains 0."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4
    signal = rng.normal(size=(4, 8))[labels][:, None]
    inside = []
    for _ in range(20):
        sides = [torch.from_numpy(signal + 3 * rng.normal(size=(200, 1, 8))).float() for _ in range(2)]
        readings = read_labels(*sides, labels, folds=5, seed=0)
        columns, above, below = leakage_series(readings, [0], [0], readings.places, 200)
        low, high = bootstrap_ratio(above, below, seed=0)
        place = [column.metric for column in columns].index("leakage")
        inside.append(low[place] <= 0 <= high[place])
    assert sum(inside) >= 17  # 19 of 20 expected


def test_a_model_that_cannot_mix_tokens_has_neither() -> None:
    results = measured(transformer_without_mixing(), "scenes:?n=40&size=128&classes=4", layers="0,1,6,12")
    assert (results[results["metric"] == "leakage"]["value"] == 0).all()
    assert results[results["metric"] == "spread"]["value"].abs().max() < 1e-9
    assert set(results[results["metric"] == "leakage"]["layer"]) == {0, 1, 6, 12}


def test_a_background_that_tells_the_class_is_not_leakage() -> None:
    without, with_context = (
        measured(planted_encoder(0.5), f"scenes:?n=300&size=64&context={context}", "diffusion.spread=false", layers="1")
        for context in (0, 1)
    )
    chance = row(without, "leakage_chance", 1)["value"]
    assert row(without, "leakage_erased", 1)["low"] <= chance <= row(without, "leakage_erased", 1)["high"]
    assert row(with_context, "leakage_erased", 1)["low"] > chance
    first, second = row(without, "leakage", 1), row(with_context, "leakage", 1)
    assert first["low"] > 0 < second["low"]
    assert first["low"] < second["high"]
    assert second["low"] < first["high"]


@pytest.mark.parametrize("fill", ["blur", "inpaint"])
def test_other_fills_find_the_planted_leakage_too(fill: str) -> None:
    results = measured(planted_encoder(0.0, 0.5), ColouredBoxes(), f"diffusion.fill={fill}", "diffusion.spread=false")
    assert row(results, "leakage", 1)["value"] == 0
    if fill == "inpaint":
        assert row(results, "leakage", 2)["low"] > 0
    else:  # the blurred box keeps the object's colour, and with it the label
        assert row(results, "leakage_erased", 2)["low"] > 25


@pytest.mark.parametrize("option", [{"batch_size": 1}, {"batch_size": 7}, {"workers": 1}])
def test_batches_and_workers_change_nothing(option: dict[str, int]) -> None:
    model: Callable[[], Backbone] = lambda: planted_encoder(0.1, 0.5)  # noqa: E731
    plain, other = measured(model(), ColouredBoxes(40)), measured(model(), ColouredBoxes(40), **option)
    assert (plain["metric"] == other["metric"]).all()
    np.testing.assert_allclose(other["value"], plain["value"], atol=1e-5)


def test_extra_forwards_are_counted_and_what_is_dropped_is_named() -> None:
    found = measure(planted_encoder(0.1), ColouredBoxes(22), analyses="diffusion", options=QUICK)
    assert found is not None
    entry = found.measurement.manifest["models"][0]
    assert entry["extra_forwards"] == {"diffusion": 22 * 3}
    assert entry["not_measured"] == {}
    few = measure(planted_encoder(0.1), ColouredBoxes(18), analyses="diffusion", options=QUICK)
    assert few is not None
    dropped = few.measurement.manifest["models"][0]["not_measured"]["diffusion"]
    assert dropped == {"leakage: a label of fewer than 5 measured pictures (diffusion.folds)": 18 - 2 * 5}
    one = measure(planted_encoder(0.1), ColouredBoxes(12, classes=1), analyses="diffusion,norms", options=QUICK)
    assert one is not None
    dropped = one.measurement.manifest["models"][0]["not_measured"]["diffusion"]
    assert dropped == {
        "leakage: all labels, or all but one, have fewer than 5 measured pictures (diffusion.folds), and it takes two": 12,
        "spread: no other picture's object of another label": 12,
    }
