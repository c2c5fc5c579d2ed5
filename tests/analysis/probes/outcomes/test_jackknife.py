"""Contributions of pictures to a ratio of sums: their mean, their spread, and the sentences that follow."""

import numpy as np
import pandas as pd
import pytest

from diffusionlens.analysis.probes.outcomes.outcome import per_image_of
from diffusionlens.analysis.probes.outcomes.scores import LayerScores, jackknife, score_rows
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation
from diffusionlens.comparison.paired import paired_differences

CLASSES = 6
TASK = Segmentation(CLASSES, 1)


def predicted(pictures: int, accuracy: float, seed: int, truth: int = 0) -> np.ndarray:
    """Sums [1,P,1,F] of label maps of two classes each, a pixel right with probability `accuracy`, else of any class."""
    of_truth, of_model = np.random.default_rng(truth), np.random.default_rng(seed)
    rows = []
    for _ in range(pictures):
        pair = of_truth.choice(CLASSES, 2, replace=False)
        true = of_truth.choice(pair, 900)
        said = np.where(of_model.random(900) < accuracy, true, of_model.integers(0, CLASSES, 900))
        hit = np.bincount(true[true == said], minlength=CLASSES)
        union = np.bincount(true, minlength=CLASSES) + np.bincount(said, minlength=CLASSES) - hit
        rows.append(np.concatenate([hit, union, np.bincount(true, minlength=CLASSES)]))
    return np.array(rows, dtype=float)[None, :, None]


def test_the_mean_is_the_score_and_the_values_are_its_derivatives() -> None:
    """Against the influence of a picture in closed form: (1/C) sum of (hit - IoU union) / sum of unions."""
    sums = predicted(300, 0.6, 1)
    whole = TASK.scores(sums.sum(1))["miou"][0, 0]
    found = jackknife(TASK, sums)["miou"][:, 0]
    assert found.mean() == pytest.approx(whole, abs=1e-9)
    hit, union = sums[0, :, 0, :CLASSES], sums[0, :, 0, CLASSES : 2 * CLASSES]
    iou = hit.sum(0) / union.sum(0)
    influence = 100 * 300 * ((hit - iou * union) / union.sum(0)).mean(1)
    np.testing.assert_allclose(found - whole, influence, atol=0.02 * influence.std())


def test_the_interval_of_a_difference_is_that_of_resampled_sums() -> None:
    """Against resampling the pictures' sums themselves, both models with the same draw."""
    pictures = 150
    both = [predicted(pictures, accuracy, seed) for accuracy, seed in ((0.60, 1), (0.63, 2))]
    names = [f"p{place:03d}" for place in range(pictures)]
    tables = [per_image_of(TASK, LayerScores(3, ("patch",), sums), names, "m", "d") for sums in both]
    row = paired_differences(*tables, seed=0).set_index("metric").loc["miou"]
    whole = [TASK.scores(sums.sum(1))["miou"][0, 0] for sums in both]
    assert row["difference"] == pytest.approx(whole[1] - whole[0], abs=1e-9)
    assert row["n"] == pictures
    rng = np.random.default_rng(7)
    weights = rng.multinomial(pictures, np.full(pictures, 1 / pictures), size=4000)
    drawn = [TASK.scores(weights @ sums[0, :, 0])["miou"] for sums in both]
    low, high = np.percentile(drawn[1] - drawn[0], [2.5, 97.5])
    half = (high - low) / 2
    assert row["low"] == pytest.approx(low, abs=0.15 * half)
    assert row["high"] == pytest.approx(high, abs=0.15 * half)


def test_a_large_picture_outweighs_small_ones() -> None:
    """The mean over pictures says one thing and all pixels another; the second is what mIoU means."""
    sums = np.zeros((2, 1, 8, 1, 3 * CLASSES))
    for model, right in enumerate(([10] * 7 + [900], [12] * 7 + [300])):
        for place, (hit, pixels) in enumerate(zip(right, [20] * 7 + [1000], strict=True)):
            sums[model, 0, place, 0, [0, CLASSES, 2 * CLASSES]] = [hit, pixels, pixels]
    names = [f"p{place}" for place in range(8)]
    tables = [per_image_of(TASK, LayerScores(3, ("patch",), own), names, "m", "d") for own in sums]
    row = paired_differences(*tables, seed=0).set_index("metric").loc["miou"]
    assert row["difference"] == pytest.approx(100 * (384 - 970) / 1140)
    plain = [own[~own["metric"].str.contains("jackknife")] for own in tables]
    mean = paired_differences(*plain, seed=0).set_index("metric").loc["miou"]
    assert mean["difference"] == pytest.approx(100 * (7 * 0.1 - 0.6) / 8)
    fewer = paired_differences(tables[0], tables[1][tables[1]["name"] != "p0"], seed=0).set_index("metric")
    assert list(fewer.index.unique()) == [
        "miou",
        "pixel_accuracy",
    ]  # contributions to the sums of other pictures are of no use
    assert fewer.loc["miou", "n"] == 7


def test_nothing_for_a_single_picture() -> None:
    sums = predicted(1, 0.5, 0)
    assert jackknife(TASK, sums) == {}
    frame = per_image_of(TASK, LayerScores(1, ("patch",), sums), ["p"], "m", "d")
    assert list(frame["metric"]) == ["miou", "pixel_accuracy"]
    assert pd.notna(score_rows(TASK, LayerScores(1, ("patch",), sums), 0)[0].value)
