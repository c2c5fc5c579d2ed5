"""Intervals of scores over pictures: where they must lie, and what they must not lean towards."""

import numpy as np
import pytest
from scipy.stats import binomtest

from diffusionlens.analysis.probes.outcomes.scores import LayerScores, score_rows
from diffusionlens.analysis.probes.tasks.classification import Classification
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation


def test_rare_classes_do_not_lift_the_interval_of_miou() -> None:
    """Every class is in one picture alone, half of them are never found; a resample lacks a third of them, of both kinds."""
    classes, pixels = 20, 100
    sums = np.zeros((1, classes, 1, 3 * classes))
    for picture in range(classes):
        right = pixels if picture % 2 else 0
        sums[0, picture, 0, [picture, classes + picture, 2 * classes + picture]] = [right, pixels, pixels]
    sums[0, :, 0, classes] += 1000  # class 0, which is never right, is seen everywhere
    row = score_rows(Segmentation(classes, 1), LayerScores(1, ("patch",), sums), 0)[0]
    assert row.value == pytest.approx(50)
    assert row.low is not None
    assert row.high is not None
    assert row.low <= row.value <= row.high
    assert (row.low + row.high) / 2 == pytest.approx(50, abs=0.01)


def test_an_interval_holds_its_value_however_few_the_pictures() -> None:
    chance = np.random.default_rng(0)
    for pictures in (2, 3, 5, 9):
        true = chance.integers(0, 6, (3, pictures, 2, 8)).astype(float)
        hit = np.floor(true * chance.uniform(0, 1, true.shape) ** 3)
        union = true + chance.integers(0, 9, true.shape)
        sums = np.concatenate([hit, union, true], -1)
        for row in score_rows(Segmentation(8, 1), LayerScores(1, ("patch", "cls"), sums), 0):
            assert row.low is not None
            assert row.high is not None
            assert row.low <= row.value <= row.high


@pytest.mark.parametrize("right", [0, 1, 17, 40])
def test_accuracy_has_wilsons_interval(right: int) -> None:
    sums = np.zeros((1, 40, 1, 2))
    sums[..., 1] = 1
    sums[0, :right, 0, 0] = 1
    row = score_rows(Classification("knn_top1"), LayerScores(1, ("cls",), sums), 0)[0]
    wanted = binomtest(right, 40).proportion_ci(0.95, "wilson")
    assert (row.low, row.high) == pytest.approx((100 * wanted.low, 100 * wanted.high))
