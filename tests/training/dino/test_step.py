"""A step that can't be taken: what is broken is named, and nothing moves."""

from typing import Any

import pytest
import torch

from diffusionlens.training.build import build_learner
from diffusionlens.training.dino.step import Learner, NotFinite, train_step
from diffusionlens.training.dino.timetable import Now
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.recipe_files import read_recipe
from tests.training.tiny import TINY

NOW = Now(lr=1e-3, weight_decay=0.04, momentum=0.5, teacher_temperature=0.04, last_layer_frozen=False)
RANKS = Ranks(torch.device("cpu"))


def parts() -> tuple[Recipe, Learner, list[torch.Tensor]]:
    recipe = read_recipe("tiny_scenes_softmax", settings=TINY)
    torch.manual_seed(0)
    learner = build_learner(recipe, RANKS, fresh=True)
    return recipe, learner, [torch.randn(4, 3, size, size) for size in (24, 24, 16, 16)]


def state(learner: Learner) -> dict[str, torch.Tensor]:
    networks = {"student": learner.student, "teacher": learner.teacher}
    return {f"{name}.{key}": value.clone() for name, own in networks.items() for key, value in own.state_dict().items()}


def moved(before: dict[str, torch.Tensor], learner: Learner) -> set[str]:
    return {name.split(".")[0] for name, value in state(learner).items() if not torch.equal(value, before[name])}


def test_what_is_not_finite_is_named() -> None:
    recipe, learner, views = parts()
    before = state(learner)

    def broken_gradient(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.inf

    hook = learner.student.backbone.norm.weight.register_hook(broken_gradient)  # type: ignore[union-attr]
    with pytest.raises(NotFinite, match=r"^a gradient \(the loss is finite\)$"):
        train_step(learner, views, NOW, recipe, RANKS)
    hook.remove()
    learner.loss.center.fill_(torch.nan)
    with pytest.raises(NotFinite, match=r"^the loss$"):  # computed with the centre
        train_step(learner, views, NOW, recipe, RANKS)
    assert moved(before, learner) == set()

    recipe, learner, views = parts()
    update = learner.loss._update

    def broken_centre() -> None:
        update()
        learner.loss.center[0, 0] = torch.inf

    learner.loss._update = broken_centre  # type: ignore[method-assign]
    with pytest.raises(NotFinite, match=r"^the centre of the teacher's outputs$"):
        train_step(learner, views, NOW, recipe, RANKS)


def test_a_step_that_half_precision_leaves_out_moves_the_teacher_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """fp16 is for GPUs: the scaler is real, and autocast stays off."""
    recipe, learner, views = parts()
    recipe = recipe.model_copy(update={"precision": "fp16"})
    monkeypatch.setattr("diffusionlens.training.dino.step._TYPES", {"fp16": torch.float32})
    learner.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # its scaled gradients overflow
    before = state(learner)
    skipped: list[float] = []

    def step() -> Any:
        numbers, _ = train_step(learner, views, NOW, recipe, RANKS)
        skipped.append(float(numbers["skipped_step"]))

    step()
    assert skipped == [1]
    assert moved(before, learner) == set()
    assert learner.scaler.get_scale() == 2.0**126
    learner.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    step()
    assert skipped == [1, 0]
    assert moved(before, learner) == {"student", "teacher"}
