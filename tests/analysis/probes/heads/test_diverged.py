"""Heads whose numbers have run away are neither chosen nor scored, and said; tokens that are no numbers are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diffusionlens import load_model, probe
from diffusionlens.analysis.probes.heads.kinds import KINDS, LayerTokens
from diffusionlens.analysis.probes.heads.linear import DIVERGED, LayerHeads
from diffusionlens.analysis.probes.heads.training import best_rates, only_rate, train_dense
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.settings.recipe import DenseRecipe
from diffusionlens.analysis.probes.tasks.depth import Depth
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation
from diffusionlens.errors import InputError
from tests.analysis.probes.test_planted import GRID, PlantedStore

MODEL = "t=shipped:mini_untrained_seed0"
TEST, TRAIN = "test=scenes:?n=4&seed=1&size=64", "train=scenes:?n=8&size=64"
CPU = torch.device("cpu")


def heads(kinds: tuple[str, ...] = ("patch", "cls+patch"), rates: int = 3, *, batch_norm: bool = True) -> LayerHeads:
    return LayerHeads(kinds, 6, 4, rates, 0, batch_norm=batch_norm, device=CPU)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), DIVERGED, -1e30])
@pytest.mark.parametrize("name", ["bias", "patch_weight", "patch_scale", "patch_shift", "side_weight", "side_scale"])
def test_a_head_with_one_such_number_has_diverged(name: str, number: float) -> None:
    own = heads()
    with torch.no_grad():
        own.parameters[name][-1, 1].view(-1)[-1] = number  # of cls+patch, the last kind of either part
    assert own.finite().tolist() == [[True, True, True], [True, False, True]]


def test_what_heads_say_that_have_not_is_finite() -> None:
    """The largest numbers that pass, on the largest tokens that are kept, in channels that were constant in training."""
    assert heads(KINDS).finite().all()
    own = heads()
    for name, value in own.parameters.items():
        own.parameters[name] = torch.full_like(value, 0.9 * DIVERGED).requires_grad_()
    own.running = {name: (mean, torch.zeros_like(var)) for name, (mean, var) in own.running.items()}
    assert own.finite().all()
    patches = torch.full((1, 2, 2, 6), 65504.0)
    said = own(LayerTokens(patches[:, 0, 0], None, patches), patches.flatten(1, 2))
    assert said.isfinite().all()


@pytest.mark.parametrize(
    "task", [Segmentation(2, 8), Depth(8, 8, (0.1, 10.0), "none", 0)], ids=["segmentation", "depth"]
)
def test_a_diverged_rate_is_not_chosen_although_it_scores_best(task: Any) -> None:
    if task.name == "segmentation":  # NaN logits name class 0, and most pixels are of it
        right = torch.tensor([[1.0, 9.0], [4.0, 9.0], [9.0, 9.0]])
        sums = torch.stack([torch.cat([own, torch.full((4,), 10.0)]) for own in right])
    else:
        rmse = torch.tensor([3.0, 2.0, 1.0])
        sums = torch.stack([torch.tensor([10.0, 10 * one**2, 1, 1, 1, one, 1, 1]) for one in rmse])
    sums = sums[None, None, None]  # [seeds,P,K,R,F]
    assert best_rates(task, sums, torch.tensor([[True, True, True]])) == [2]
    assert best_rates(task, sums, torch.tensor([[True, True, False]])) == [1]
    assert best_rates(task, sums, torch.tensor([[True, False, False]])) == [0]
    assert best_rates(task, sums, torch.tensor([[False, False, False]])) == [None]


def test_a_score_that_is_no_number_is_not_chosen_either() -> None:
    rmse = torch.tensor([3.0, float("nan"), float("inf")])
    sums = torch.stack([torch.tensor([10.0, 10 * one**2, 1, 1, 1, one, 1, 1]) for one in rmse])[None, None, None]
    task = Depth(8, 8, (0.1, 10.0), "none", 0)
    assert best_rates(task, sums, torch.ones(1, 3, dtype=torch.bool)) == [0]
    assert best_rates(task, sums[..., 1:, :], torch.ones(1, 2, dtype=torch.bool)) == [None]


def test_a_single_rate_is_taken_unless_it_has_diverged() -> None:
    assert only_rate(torch.tensor([[True], [False]])) == [0, None]


def test_what_is_selected_has_no_diverged_head() -> None:
    taken = heads(KINDS).select([0, None, 2, None, 1])
    assert taken.kinds == ("patch", "cls+patch", "mean+patch")
    assert taken.finite().shape == (3, 1)


def test_training_at_a_rate_that_is_too_high_diverges_beside_one_that_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(3, (12, *GRID), generator=generator)
    patches = torch.nn.functional.one_hot(target, 3).float()
    store: Any = PlantedStore(torch.randn(12, 3, generator=generator), patches, target)
    recipe = recipe_for("segmentation", "fast", ["iterations=40", "warmup=2", "rates=1e-2,1e6", "weight_decay=1"])
    assert isinstance(recipe, DenseRecipe)
    own = train_dense(Segmentation(3, 16), store, range(12), 0, KINDS, recipe, 0, CPU, lambda: None)
    assert own.finite().tolist() == [[True, False]] * len(KINDS)


FAST = ["iterations=12", "points=16", "warmup=0", "weight_decay=10"]
CROPS = ["iterations=4", "batch_size=2", "warmup=0", "weight_decay=10"]
RUNS: list[tuple[str, str, list[str]]] = [
    ("segmentation", "fast", FAST),
    ("depth", "fast", [*FAST, "bins=8"]),
    ("segmentation", "dinov2", [*CROPS, "crop=32", "window=32", "stride=32"]),
    ("depth", "dinov2", [*CROPS, "bins=8", "crop=32", "view=32"]),
    ("classification", "dinov2", ["iterations=8", "batch_size=4", "weight_decay=10", "augment=false"]),
]


@pytest.mark.parametrize(("task", "preset", "options"), RUNS, ids=[f"{one[0]}-{one[1]}" for one in RUNS])
def test_a_run_of_diverged_heads_alone_is_refused_and_says_the_rate(task: str, preset: str, options: list[str]) -> None:
    more: dict[str, Any] = {} if task == "classification" else {"layers": "last", "tokens": "patch,cls+patch"}
    with pytest.raises(
        InputError, match=r"nothing could be probed on test: .* diverge at rate 1e\+06; give smaller ones"
    ) as error:
        probe(task, MODEL, TEST, TRAIN, preset=preset, seeds=1, options=[*options, "rates=1e6"], **more)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("task", "preset", "options"), RUNS, ids=[f"{one[0]}-{one[1]}" for one in RUNS])
def test_beside_a_good_rate_a_diverged_one_is_never_chosen(task: str, preset: str, options: list[str]) -> None:
    more: dict[str, Any] = {} if task == "classification" else {"layers": "last", "tokens": "patch,cls+patch"}
    done = probe(task, MODEL, TEST, TRAIN, preset=preset, seeds=1, options=[*options, "rates=1e6,1e-3"], **more)
    assert done is not None
    chosen = done.measurement.manifest["models"][0]["probe"]["learning_rates"]
    assert {rate for own in chosen.values() for rate in own.values()} == {1e-3}
    assert done.measurement.results["value"].notna().all()


def test_what_diverged_is_left_out_and_named_and_the_rest_is_there(tmp_path: Path) -> None:
    done = probe(
        "classification", MODEL, TEST, TRAIN, tmp_path / "out", layers="0,6", seeds=2, tokens="patch,cls",
        options=["iterations=12", "rates=1e6", "weight_decay=10"],
    )  # fmt: skip
    assert done is not None
    assert set(done.measurement.results["metric"]) == {"knn_top1", "logreg_top1"}
    told = [(one["what"], one["reason"]) for one in done.measurement.manifest["left_out"]]
    for layer in (0, 6):
        for kind in ("patch", "cls"):
            assert (
                f"{kind} of layer {layer}",
                "its heads diverge at rate 1e+06; give smaller ones with --set rates",
            ) in told
    assert done.page is not None
    assert "heads diverge at rate 1e+06" in done.page.read_text()


@pytest.mark.parametrize(("number", "told"), [(1e7, "reach "), (float("nan"), "reach nan"), (1e38, "reach ")])
@pytest.mark.parametrize("task", ["segmentation", "depth", "classification"])
def test_tokens_beyond_what_they_are_kept_in_are_refused(number: float, told: str, task: str) -> None:
    backbone = load_model(MODEL)
    assert backbone.norm is not None
    backbone.norm.weight.data.mul_(number)  # type: ignore[union-attr, operator]
    with pytest.raises(
        InputError, match=f"t: tokens of layer 6 {told}.*, beyond the numbers that they are kept in .float16."
    ) as error:
        probe(task, backbone, TEST, TRAIN, layers="last")
    assert "\n" not in str(error.value)


def test_tokens_that_are_no_numbers_are_refused() -> None:
    backbone = load_model(MODEL)
    for parameter in backbone.blocks[-1].parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(InputError, match="tokens of layer 6 are not finite"):
        probe("segmentation", backbone, TEST, TRAIN)


def test_a_model_without_a_final_norm_keeps_large_tokens_in_32_bits() -> None:
    backbone = load_model(MODEL)
    for parameter in backbone.model.patch_embed.parameters():  # type: ignore[union-attr, operator]
        parameter.data.mul_(1e7)
    sizes = []
    for norm in (backbone.norm, None):
        backbone.norm = norm
        done = probe(
            "segmentation", backbone, TEST, TRAIN, layers="last", tokens="patch", options=["iterations=4", "points=16"]
        )
        assert done is not None
        assert done.measurement.results["value"].notna().all()
        sizes.append(done.measurement.manifest["models"][0]["probe"]["token_bytes"])
    assert sizes[1] - sizes[0] == pytest.approx(
        12 * 37 * 96 * 2, rel=0.01
    )  # pictures, tokens, channels, 2 bytes more each
