"""Tokens whose content is known give the scores that they must give."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.heads.training import best_rates, evaluate_dense, split_held_out, train_dense
from diffusionlens.analysis.probes.outcomes.scores import LayerScores, gain_rows, score_rows, student
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.settings.recipe import DenseRecipe
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation

GRID = (4, 4)


class PlantedStore:
    """Tokens and label maps in memory, in the form of a TokenStore."""

    def __init__(self, cls: Tensor, patches: Tensor, targets: Tensor) -> None:
        self.cls, self.patches, self.labels = cls, patches, targets

    def __len__(self) -> int:
        return len(self.labels)

    def tokens(self, layer: int, pictures: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.cls[list(pictures)], self.patches[list(pictures)]

    def target(self, picture: int) -> Tensor:
        return self.labels[picture].to(torch.uint8)


def scored(
    store: PlantedStore, classes: int, seeds: int = 2
) -> tuple[dict[str, float], dict[str, tuple[float, float, float]]]:
    """mIoU and gain (with its interval) of every kind; the first two thirds of the pictures are learned from."""
    recipe = recipe_for("segmentation", "fast", ["iterations=150", "rates=3e-2,1e-1", "points=64", "warmup=5"])
    assert isinstance(recipe, DenseRecipe)
    task = Segmentation(classes, recipe.points)
    count = 2 * len(store) // 3
    learn, held_out = split_held_out(count, recipe, 0)
    train = [
        train_dense(task, store, learn, 0, KINDS, recipe, seed, torch.device("cpu"), lambda: None)
        for seed in range(seeds)
    ]  # type: ignore[arg-type]
    sums = evaluate_dense(task, train, store, held_out, 0, 0, lambda: None)  # type: ignore[arg-type]
    chosen = best_rates(task, sums, train[0].finite())
    heads = [own.select(chosen) for own in train]
    sums = evaluate_dense(task, heads, store, range(count, len(store)), 0, 0, lambda: None)[:, :, :, 0]  # type: ignore[arg-type]
    found = LayerScores(0, KINDS, sums.double().numpy())
    rows = score_rows(task, found, 0)
    gains = gain_rows(task, found, 0)
    assert all(row.low <= row.value + 1e-9 for row in gains if row.low is not None)
    return (
        {str(row.token): row.value for row in rows if row.metric == "miou"},
        {str(row.token): (row.value, row.low or 0, row.high or 0) for row in gains if row.metric == "gain"},
    )


def test_tokens_that_are_the_label_score_100() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(5, (30, *GRID), generator=generator)
    target[:, 0, 0] = 255
    patches = torch.nn.functional.one_hot(target.clamp(max=4), 5).float()
    miou, _ = scored(PlantedStore(torch.randn(30, 5, generator=generator), patches, target), 5)
    assert miou["patch"] == miou["mean+patch"] == pytest.approx(100)
    assert miou["cls"] < 50


def test_patches_that_hold_only_what_cls_holds_gain_nothing() -> None:
    label = torch.arange(48) % 3
    cls = torch.nn.functional.one_hot(label, 6).float()
    patches = cls[:, None, None].expand(-1, *GRID, -1).contiguous()
    miou, gain = scored(PlantedStore(cls, patches, label[:, None, None].expand(-1, *GRID)), 3)
    assert miou["cls"] == miou["cls+patch"] == miou["patch"] == pytest.approx(100)
    assert gain["cls+patch"][0] == 0


def test_a_planted_gain_is_found_and_controls_show_none() -> None:
    """The patch tells the region, CLS the picture's class, and the label is both."""
    generator = torch.Generator().manual_seed(1)
    kind = torch.randint(2, (90,), generator=generator)
    region = torch.zeros(GRID, dtype=torch.int64)
    region[:, 2:] = 1
    target = 2 * region[None] + kind[:, None, None]
    cls = torch.nn.functional.one_hot(kind, 4).float() + 0.1 * torch.randn(90, 4, generator=generator)
    patches = torch.nn.functional.one_hot(region, 4).float().expand(90, -1, -1, -1)
    patches = patches + 0.1 * torch.randn(90, *GRID, 4, generator=generator)
    miou, gain = scored(PlantedStore(cls, patches, target), 4, seeds=3)
    assert miou["cls+patch"] == pytest.approx(100)
    assert gain["cls+patch"][1] > 30
    for control in ("shuffled_cls+patch", "mean+patch"):
        assert abs(gain[control][0]) < 10
        assert gain[control][2] < gain["cls+patch"][1]


def test_students_interval() -> None:
    low, high = student(torch.tensor([1.0, 2.0, 3.0]).numpy())
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))  # t of 2 degrees of freedom
    assert student(torch.tensor([1.0]).numpy()) == (None, None)


def test_the_held_out_part() -> None:
    recipe = recipe_for("classification", "fast", ["held_out=0.25"])
    labels = [place % 4 for place in range(40)]
    learn, held_out = split_held_out(40, recipe, 0, labels)
    assert sorted(learn + held_out) == list(range(40))
    assert len(held_out) == 10
    assert {labels[place] for place in learn} == {labels[place] for place in held_out} == {0, 1, 2, 3}
    single = recipe_for("classification", "fast", ["rates=0.1"])
    assert split_held_out(40, single, 0) == (list(range(40)), [])
