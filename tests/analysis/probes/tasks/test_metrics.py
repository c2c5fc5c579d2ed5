"""mIoU, depth errors and k-NN against torchmetrics, scikit-learn and plain definitions, on random and degenerate input."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score
from sklearn.neighbors import KNeighborsClassifier
from torch.nn import functional
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.regression import MeanSquaredError

from diffusionlens.analysis.probes.geometry.upsampled import count_classes, tally_upsampled, upsample
from diffusionlens.analysis.probes.tasks.classification import few_shot, unit_rows
from diffusionlens.analysis.probes.tasks.depth import (
    EIGEN_CROP,
    GARG_CROP,
    Depth,
    crop_window,
    expected_depth,
    sigloss,
)
from diffusionlens.analysis.probes.tasks.knn import knn_predict
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation
from diffusionlens.errors import InputError


def masks(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [pictures,classes,h,w] and label maps [pictures,H,W]."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 6, 4, 5, generator=generator)
    target = torch.randint(6, (3, 17, 23), generator=generator)
    target[:, :3] = 255
    if kind == "absent":
        target[target == 2] = 1
        logits[:, 2] = -9  # neither true nor predicted
        target[target == 4] = 3  # predicted only
    if kind == "ignored":
        target[1] = 255
    return logits, target


@pytest.mark.parametrize("kind", ["random", "absent", "ignored"])
def test_miou_is_that_of_torchmetrics_and_scikit_learn(kind: str) -> None:
    logits, target = masks(kind)
    task = Segmentation(6, 1)
    sums = torch.cat([task.sums(tally_upsampled(one[None], own)) for one, own in zip(logits, target, strict=True)])
    found = {name: float(value) for name, value in task.scores(sums.sum(0).numpy()).items()}
    predicted = functional.interpolate(logits, size=(17, 23), mode="bilinear").argmax(1)
    expected = MulticlassJaccardIndex(6, average="macro", ignore_index=255)(predicted, target)
    counted = target != 255
    true, guess = target[counted].numpy(), predicted[counted].numpy()
    assert found["miou"] == pytest.approx(100 * float(expected), abs=1e-4)
    occurring = sorted(set(true) | set(guess))
    assert found["miou"] == pytest.approx(100 * jaccard_score(true, guess, average="macro", labels=occurring), abs=1e-4)
    assert found["pixel_accuracy"] == pytest.approx(100 * accuracy_score(true, guess))
    assert task.counts(sums.numpy()).tolist() == [True, kind != "ignored", True]


def test_nothing_labelled_is_no_score() -> None:
    task = Segmentation(3, 1)
    sums = task.sums(tally_upsampled(torch.randn(1, 3, 2, 2), torch.full((5, 5), 255)))
    assert np.isnan(task.scores(sums[0].numpy())["miou"])


@pytest.mark.parametrize("size", [(4, 5), (9, 11), (3, 2), (64, 40)])
def test_the_compiled_count_is_torchs(size: tuple[int, int]) -> None:
    logits = torch.randn(4, 7, 4, 5)
    target = torch.randint(7, size)
    target[0] = 255
    expected = torch.stack([count_classes(upsample(one[None], size)[0].argmax(0), target, 7) for one in logits])
    assert (tally_upsampled(logits, target) - expected).abs().max() <= 1  # a tie in the last bit


def test_the_loss_of_points_is_that_of_the_whole_map() -> None:
    """Where the points are all pixels of the grid's own size."""
    logits = torch.randn(2, 3, 4, 1, 1, 5)
    target = torch.randint(5, (2, 3, 4))
    target[0, 0] = 255
    task = Segmentation(5, 1)
    expected = functional.cross_entropy(logits[:, :, :, 0, 0].permute(0, 3, 1, 2), target, ignore_index=255)
    torch.testing.assert_close(task.point_loss(logits.flatten(1, 2), target.flatten(1), 0), expected.view(1, 1))
    ignored = torch.full((2, 3, 4), 255)
    assert task.point_loss(logits.flatten(1, 2), ignored.flatten(1), 0).tolist() == [[0.0]]


def test_depth_errors_are_those_of_torchmetrics_and_of_their_definitions() -> None:
    generator = torch.Generator().manual_seed(2)
    task = Depth(8, 1, (1e-3, 10.0), "none", 0)
    sums, own, pooled, relative = [], [], MeanSquaredError(squared=False), []
    for place in range(4):
        true = 9 * torch.rand(20, 30, generator=generator) + 0.5
        true[: 2 + place] = torch.nan
        true[-1] = 11  # beyond the range
        guess = true.nan_to_num(5) * (1 + 0.3 * torch.randn(20, 30, generator=generator))
        sums.append(task.sums(guess, true))
        counted = true < 10
        there, wanted = guess[counted].clamp(1e-3, 10), true[counted]
        own.append(float(MeanSquaredError(squared=False)(there, wanted)))
        pooled.update(there, wanted)
        relative.append(float(((there - wanted).abs() / wanted).mean()))
    sums.append(task.sums(torch.ones(20, 30), torch.full((20, 30), torch.nan)))  # a picture without a reading
    stacked = torch.stack(sums)
    found = {name: float(value) for name, value in task.scores(stacked.sum(0).numpy()).items()}
    assert task.counts(stacked.numpy()).tolist() == [True] * 4 + [False]
    assert found["rmse"] == pytest.approx(np.mean(own), rel=1e-5)
    assert found["rmse_pooled"] == pytest.approx(float(pooled.compute()), rel=1e-5)
    assert found["abs_rel"] == pytest.approx(np.mean(relative), rel=1e-5)
    assert found["rmse"] != pytest.approx(found["rmse_pooled"], rel=1e-4)
    assert 0 < found["delta1"] < 1
    assert np.isnan(task.scores(sums[-1].numpy())["rmse"])


def test_crops() -> None:
    rows, columns = crop_window("eigen", (480, 640))
    assert (rows.start, rows.stop, columns.start, columns.stop) == EIGEN_CROP == (45, 471, 41, 601)
    rows, columns = crop_window("garg", (375, 1242))
    assert (rows.start, rows.stop, columns.start, columns.stop) == (153, 371, 44, 1197)  # as in Garg et al.'s code
    assert GARG_CROP[0] * 375 == pytest.approx(153, abs=0.1)
    assert crop_window("none", (5, 6)) == (slice(0, 5), slice(0, 6))
    with pytest.raises(InputError, match="480x640"):
        crop_window("eigen", (240, 320))


def test_depth_of_planted_bins() -> None:
    logits = torch.zeros(2, 11)
    assert expected_depth(logits, 0.0, 10.0).tolist() == pytest.approx(
        [5, 5]
    )  # no positive logit: the mean of the bins
    logits[0, 3] = 1e6
    assert float(expected_depth(logits, 0.0, 10.0)[0]) == pytest.approx(3, abs=1e-3)


def test_sigloss() -> None:
    predicted, true = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 1.0, 2.0])
    gap = np.log(predicted.numpy() + 1e-3) - np.log(true.numpy() + 1e-3)
    assert float(sigloss(predicted, true, warming_up=False)) == pytest.approx(
        np.sqrt(gap.var(ddof=1) + 0.15 * gap.mean() ** 2), rel=1e-5
    )
    assert float(sigloss(predicted, true, warming_up=True)) == pytest.approx(np.sqrt(0.15) * abs(gap.mean()), rel=1e-4)
    same = true.clone().requires_grad_()
    sigloss(same, true, warming_up=False).backward()
    assert torch.isfinite(same.grad).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [40, 6])
def test_neighbours_vote_as_in_scikit_learn(size: int) -> None:
    """Also where k is larger than the set: all of it votes."""
    generator = torch.Generator().manual_seed(3)
    bank = unit_rows([torch.randn(size, 8, generator=generator)])
    queries = unit_rows([torch.randn(50, 8, generator=generator)])
    labels = torch.randint(4, (size,), generator=generator)
    k = (1, 5, 20, 200)
    found = knn_predict(queries, bank, labels, k, 0.07, 5)
    for place, count in enumerate(k):
        model = KNeighborsClassifier(
            min(count, size), weights=lambda distance: np.exp((1 - distance) / 0.07), metric="cosine", algorithm="brute"
        )
        model.fit(bank.numpy(), labels.numpy())
        assert found[place].tolist() == model.predict(queries.numpy()).tolist()


def test_concatenated_features_have_the_mean_cosine() -> None:
    one, other = torch.randn(5, 3), 1000 * torch.randn(5, 3)
    joined = unit_rows([one, other])
    cosines = [functional.normalize(part, dim=1) @ functional.normalize(part, dim=1).T for part in (one, other)]
    torch.testing.assert_close(joined @ joined.T, sum(cosines) / 2)


def test_few_shots_are_of_every_class() -> None:
    labels = [0] * 5 + [1] * 2 + [2] * 9
    chosen = few_shot(labels, 3, 0)
    assert [sum(labels[place] == number for place in chosen) for number in range(3)] == [3, 2, 3]
    assert chosen != few_shot(labels, 3, 1)
