"""Which pictures heads learn from, and which choose: every class its share, every shot counted, and nothing without a label."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens import probe
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.heads.training import split_held_out
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.settings.recipe import ClassificationRecipe
from diffusionlens.analysis.probes.tasks.classification import classify_layer, learning_parts
from diffusionlens.errors import InputError
from tests.analysis.probes.heads.test_damaged_heads import heads_alone
from tests.data.files import save_grey, save_mask

MODEL = "t=shipped:mini_untrained_seed0"
TEST, TRAIN = "test=scenes:?n=4&seed=1&size=64", "train=scenes:?n=6&size=64"
QUICK = ["iterations=4", "points=16"]
CROPS = ["iterations=2", "batch_size=2", "warmup=0", "crop=32", "window=32", "stride=32"]


def labels_of(counts: Sequence[int]) -> list[int]:
    """Sorted by class, as class folders are."""
    return [label for label, count in enumerate(counts) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("counts", "share", "held"),
    [
        ((100, 30, 10, 10), 0.1, (10, 3, 1, 1)),
        ((100, 30, 10, 10), 0.2, (20, 6, 2, 2)),
        ((50, 50), 0.1, (5, 5)),
        ((1000, 3), 0.1, (100, 0)),
        ((20, 1, 1, 1), 0.5, (9, 0, 0, 0)),  # a class of one picture is learned, and the larger part of every other is
        ((3, 3, 3), 0.5, (1, 1, 1)),
    ],
)
def test_every_class_gives_its_share(counts: Sequence[int], share: float, held: Sequence[int], seed: int) -> None:
    labels = labels_of(counts)
    recipe = recipe_for("classification", "fast", [f"held_out={share}"])
    learn, held_out = split_held_out(len(labels), recipe, seed, labels)
    assert sorted(learn + held_out) == list(range(len(labels)))
    found = Counter(labels[place] for place in held_out)
    assert tuple(found[label] for label in range(len(counts))) == held
    assert {labels[place] for place in learn} == set(labels)


def test_another_seed_holds_out_others() -> None:
    labels, recipe = labels_of((50, 50)), recipe_for("classification", "fast", [])
    parts = {tuple(split_held_out(100, recipe, seed, labels)[1]) for seed in range(5)}
    assert len(parts) == 5


@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (2, 2), (2, 1, 1)])
def test_classes_too_small_to_give_a_share(counts: Sequence[int]) -> None:
    labels = labels_of(counts)
    learn, held_out = split_held_out(len(labels), recipe_for("classification", "fast", []), 0, labels)
    assert len(held_out) == 1
    assert sorted(learn + held_out) == list(range(len(labels)))
    if max(counts) > 1:  # the class that gives one keeps one
        assert {labels[place] for place in learn} == set(labels)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_pictures(count: int) -> None:
    with pytest.raises(InputError, match=f"{count} training pictures are too few; wanted 3 at least"):
        split_held_out(count, recipe_for("segmentation", "fast", []), 0)


def shots_of(shots: int, *more: str) -> ClassificationRecipe:
    recipe = recipe_for("classification", "fast", [f"shots={shots}", *more])
    assert isinstance(recipe, ClassificationRecipe)
    return recipe


@pytest.mark.parametrize("shots", [1, 2, 5])
def test_shots_are_all_learned_from(shots: int) -> None:
    labels = labels_of((12, 12, 12, 7))
    drawn = []
    for number in range(3):
        learn, held_out = learning_parts(labels, shots_of(shots), 0, number)
        assert Counter(labels[place] for place in learn) == dict.fromkeys(range(4), shots)
        assert not set(learn) & set(held_out)
        most = {label: min(shots, count - shots) for label, count in enumerate((12, 12, 12, 7))}
        assert Counter(labels[place] for place in held_out) == most
        drawn.append(tuple(learn))
        assert learning_parts(labels, shots_of(shots, "rates=0.1"), 0, number) == (learn, [])
    assert len(set(drawn)) == 3  # every training draws its own


class Features:
    """CLS is the picture's class one-hot, in the form of a pooled TokenStore."""

    def __init__(self, labels: Sequence[int], classes: int) -> None:
        self.labels = list(labels)
        self.vectors = 5 * torch.nn.functional.one_hot(torch.tensor(self.labels), classes).float()

    def __len__(self) -> int:
        return len(self.labels)

    def tokens(self, layer: int, pictures: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.vectors[list(pictures)], self.vectors[list(pictures)]


@pytest.mark.parametrize("method", ["linear", "logreg", "knn"])
def test_one_shot_of_every_class_is_enough_where_classes_are_apart(method: str) -> None:
    """Of 20 drawn pictures two were held out, so that the heads never saw 2 of the 20 classes."""
    labels = labels_of([3] * 20)
    train, test = Features(labels, 20), Features(range(20), 20)
    recipe = shots_of(1, f"methods={method}", "k=1", "iterations=100", "rates=10,30")
    found, rates, left_out, gone = classify_layer(
        train, test, 0, ("cls",), recipe, 2, 0, 20, torch.device("cpu"), lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    assert (left_out, gone) == ({}, [])
    assert set(rates) == ({"cls"} if method == "linear" else set())
    sums = found[0][1].sums
    assert sums[..., 0].sum() == sums[..., 1].sum() == 2 * 20


def test_shots_of_all_pictures_leave_none_to_choose_by() -> None:
    labels = labels_of([2] * 4)
    train, test = Features(labels, 4), Features(range(4), 4)
    found, _, left_out, _ = classify_layer(
        train, test, 0, ("cls",), shots_of(2), 1, 0, 4, torch.device("cpu"), lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    assert {task.primary for task, _ in found} == {"knn_top1"}
    assert "no picture is left to choose a rate by" in left_out["linear_top1"]
    assert "no picture is left to choose a penalty by" in left_out["logreg_top1"]
    one = shots_of(2, "rates=1")
    found, _, left_out, _ = classify_layer(
        train, test, 0, ("cls",), one, 1, 0, 4, torch.device("cpu"), lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    assert {task.primary for task, _ in found} == {"knn_top1", "linear_top1"}


def test_two_training_pictures_and_one_rate() -> None:
    labels = [0, 1]
    train, test = Features(labels, 2), Features(labels, 2)
    recipe = recipe_for("classification", "fast", ["rates=10", "k=1", "iterations=50"])
    assert isinstance(recipe, ClassificationRecipe)
    found, _, left_out, _ = classify_layer(
        train, test, 0, ("cls",), recipe, 1, 0, 2, torch.device("cpu"), lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    assert {task.primary for task, _ in found} == {"knn_top1", "linear_top1"}
    assert left_out["logreg_top1"] == "2 training pictures are too few to choose a penalty by one of them"


def no_other_cls(done: Any, kinds: set[str]) -> None:
    assert done is not None
    assert {token.split(" k=")[0] for token in done.measurement.results["token"]} == kinds
    told = [(one["what"], one["reason"]) for one in done.measurement.manifest["left_out"]]
    assert ("shuffled_cls+patch", "one picture has no other one to take the CLS from") in told


@pytest.mark.parametrize("preset", ["fast", "dinov2"])
def test_one_test_picture_has_no_other_ones_cls(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusionlens.api.probing.write_bundle", heads_alone)
    options = QUICK if preset == "fast" else CROPS
    scored = [] if preset == "fast" else ["window=32", "stride=32"]
    more: dict[str, Any] = {"layers": "last", "preset": preset}
    one = "one=scenes:?n=1&seed=1&size=64"
    done = probe("segmentation", MODEL, one, TRAIN, seeds=1, options=options, **more)
    no_other_cls(done, set(KINDS) - {"shuffled_cls+patch"})
    probe("segmentation", MODEL, TEST, TRAIN, tmp_path / "out", seeds=1, save_heads=True, options=options, **more)
    file = tmp_path / "out" / "heads" / "t.safetensors"
    no_other_cls(
        probe("segmentation", MODEL, one, heads=file, options=scored, **more), set(KINDS) - {"shuffled_cls+patch"}
    )
    two = probe("segmentation", MODEL, "two=scenes:?n=2&seed=1&size=64", heads=file, options=scored, **more)
    assert two is not None
    assert set(two.measurement.results["token"]) == set(KINDS)


def ade(root: Path, masks: Sequence[int | None], size: int = 32) -> str:
    """Pictures whose whole mask is one stored value; None: the picture is damaged."""
    rng = np.random.default_rng(0)
    for number, value in enumerate(masks):
        picture = root / f"images/validation/{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(picture)
        if value is None:
            picture.write_bytes(picture.read_bytes()[:60])
        save_mask(root / f"annotations/validation/{number}.png", np.full((size, size), 1 if value is None else value))
    return f"{root.name}=ade20k:{root}"


def nyu(root: Path, depths: Sequence[int], size: int = 32) -> str:
    """Depth maps of so many millimetres everywhere."""
    lines = []
    for number, value in enumerate(depths):
        (root / "a").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (size, size), (10 * number, 90, 30)).save(root / f"a/{number}.jpg")
        save_grey(root / f"a/{number}.png", [[value] * size] * size, 16)
        lines.append(f"a/{number}.jpg a/{number}.png 1")
    (root / "test.txt").write_text("\n".join(lines))
    return f"{root.name}=nyuv2:{root}"


@pytest.mark.parametrize("preset", ["fast", "dinov2"])
def test_a_single_readable_test_picture_has_no_other_ones_cls(preset: str, tmp_path: Path) -> None:
    options = QUICK if preset == "fast" else CROPS
    test, train = ade(tmp_path / "test", [1, None, None]), ade(tmp_path / "train", [1, 2, 1, 2])
    done = probe(
        "segmentation", MODEL, test, train, seeds=1, layers="last", preset=preset, options=options,
        tokens="patch,cls+patch,shuffled_cls+patch",
    )  # fmt: skip
    no_other_cls(done, {"patch", "cls+patch"})


@pytest.mark.parametrize("preset", ["fast", "dinov2"])
@pytest.mark.parametrize("task", ["segmentation", "depth"])
def test_training_pictures_without_any_label_are_refused(task: str, preset: str, tmp_path: Path) -> None:
    if task == "segmentation":
        test, train = ade(tmp_path / "test", [1, 2]), ade(tmp_path / "train", [0, 0, 0, 0])
        options, told = (QUICK if preset == "fast" else CROPS), "no pixel of its pictures has a class of the data set"
    else:
        test, train = nyu(tmp_path / "test", [1000, 2000]), nyu(tmp_path / "train", [0, 0, 65535, 20000])
        options = [*QUICK, "crop_name=none"] if preset == "fast" else [*CROPS[:4], "view=32", "crop_name=none"]
        told = "no pixel of its pictures has a depth above 0.001 and up to 10 m"
    with pytest.raises(InputError, match=f"train has nothing to learn from: {told}.*give other --train") as error:
        probe(task, MODEL, test, train, layers="last", preset=preset, options=options)
    assert "\n" not in str(error.value)


def test_those_without_a_label_are_not_learned_from_and_are_named(tmp_path: Path) -> None:
    test, train = ade(tmp_path / "test", [1, 2]), ade(tmp_path / "train", [1, 0, 2, 0, 1, 2])
    done = probe(
        "segmentation", MODEL, test, train, tmp_path / "out", seeds=1, layers="last", tokens="patch", options=QUICK
    )
    assert done is not None
    data = done.measurement.manifest["data"][1]
    assert (data["role"], data["pictures"], data["measured"]) == ("train", 6, 4)
    assert data["skipped"] == [{"file": f"{number}.png", "reason": "nothing labelled"} for number in (1, 3)]
    assert done.page is not None
    assert done.page.read_text().count("training picture: nothing labelled") == 2
