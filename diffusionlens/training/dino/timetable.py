"""What holds at which step of a run: schedules, the frozen last layer, when to save. Pure functions of the step."""

from dataclasses import dataclass
from typing import Literal

from diffusionlens.errors import InputError
from diffusionlens.training.dino.schedules import check_ramp, cosine, linear, warmup_cosine
from diffusionlens.training.recipe import Recipe, duration_steps


@dataclass(frozen=True)
class Now:
    """The schedules' values for one step."""

    lr: float
    weight_decay: float
    momentum: float
    teacher_temperature: float
    last_layer_frozen: bool


class Timetable:
    """A recipe's durations, in steps of this run.

    Raises:
        InputError: a ramp is longer than the run.
    """

    def __init__(self, recipe: Recipe, steps_per_epoch: int) -> None:
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        self.total = duration_steps(recipe.length, steps_per_epoch)
        if self.total < 1:
            raise InputError(f"length '{recipe.length}' is no step at all; wanted at least one")
        self.warmup = self._ramp("optimizer.warmup", recipe.optimizer.warmup)
        self.temperature_warmup = self._ramp("teacher.temperature_warmup", recipe.teacher.temperature_warmup)
        self.frozen = self._ramp("optimizer.freeze_last_layer", recipe.optimizer.freeze_last_layer)
        self.save = max(self._steps(recipe.checkpoint.save), 1)
        self.every = max(self._steps(recipe.checkpoint.every), 1)

    def at(self, step: int) -> Now:
        """For the step that `step` steps go before (0 is the first)."""
        optimizer, teacher = self.recipe.optimizer, self.recipe.teacher
        return Now(
            lr=warmup_cosine(step, self.total, self.warmup, self.recipe.peak_lr, optimizer.lr_end),
            weight_decay=cosine(step, self.total, optimizer.weight_decay, optimizer.weight_decay_end),
            momentum=cosine(step, self.total, teacher.momentum, teacher.momentum_end),
            teacher_temperature=self._temperature(step),
            last_layer_frozen=step < self.frozen,
        )

    def saves(self, step: int) -> Literal["", "last", "numbered"]:
        """What is to be saved when `step` steps are done."""
        if step == self.total or step % self.every == 0:
            return "numbered"
        return "last" if step % self.save == 0 else ""

    def _temperature(self, step: int) -> float:
        teacher = self.recipe.teacher
        # DINO's is constant inside an epoch; one that is not given in epochs moves with every step.
        unit = self.steps_per_epoch if "epoch" in teacher.temperature_warmup else 1
        length = round(self.temperature_warmup / unit)
        return linear(step // unit, length, teacher.warmup_temperature, teacher.temperature)

    def _steps(self, duration: str) -> int:
        return duration_steps(duration, self.steps_per_epoch, self.total)

    def _ramp(self, key: str, duration: str) -> int:
        steps = self._steps(duration)
        check_ramp(f"{key} ({duration})", steps, self.total, "steps")
        return steps
