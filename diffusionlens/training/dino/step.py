"""One training step, in DINO's order, and what it changes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffusionlens.training.dino.loss import DINOLoss
from diffusionlens.training.dino.networks import MultiCropNetwork, update_teacher
from diffusionlens.training.dino.optimizer import (
    clip_global,
    clip_per_parameter,
    freeze_last_layer,
    gradient_norm,
    set_schedule,
)
from diffusionlens.training.dino.timetable import Now
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import Recipe

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class NotFinite(Exception):  # noqa: N818  (it names what happened, not a fault of the program)
    """The loss, the centre or a gradient (the text says which) is NaN or infinite on some rank; no weight has been changed by
    it."""


@dataclass
class Learner:
    """Everything that a step changes. `wrapped` is the student as it is called: for several ranks inside DDP."""

    student: MultiCropNetwork
    wrapped: nn.Module
    teacher: MultiCropNetwork
    loss: DINOLoss
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: getattr(self, name).state_dict() for name in self._stateful}

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint of the same recipe."""
        for name in self._stateful:
            getattr(self, name).load_state_dict(state[name])

    _stateful = ("student", "teacher", "loss", "optimizer", "scaler")

    def finite(self) -> bool:
        """Whether all weights and moments are: a damaged learner must not replace a good one on the disk."""
        tensors = [value.detach() for network in (self.student, self.teacher) for value in network.parameters()]
        tensors += [value for state in self.optimizer.state.values() for value in state.values() if value.ndim]
        largest = torch._foreach_norm(tensors, torch.inf)
        return bool(torch.isfinite(torch.stack(list(largest))).all())


def train_step(
    learner: Learner, views: Sequence[Tensor], now: Now, recipe: Recipe, ranks: Ranks, *, stop: bool = False
) -> tuple[dict[str, Tensor], bool]:
    """Takes one step on `views`, each [B,3,H,W] (this rank's share of the batch), the two global ones first.

    Args:
        now: what the schedules say for this step.
        stop: whether this rank was asked to stop.

    Returns:
        The loss and its diagnostics (means over the parts, 0-dimensional; `skipped_step` 1 where fp16 overflowed and nothing was
        changed), and whether any rank was asked to stop.

    Raises:
        NotFinite: loss or gradient is not, on some rank; raised on every rank.
    """
    set_schedule(learner.optimizer, now.lr, now.weight_decay)
    learner.optimizer.zero_grad(set_to_none=True)
    numbers = _gradients(learner, views, now, recipe, ranks.device)
    learner.scaler.unscale_(learner.optimizer)
    numbers["gradient_norm"] = _clip(learner.student, recipe)
    watched = [numbers["loss"], learner.loss.center.norm(), numbers["gradient_norm"]]
    finite = torch.stack(watched).isfinite().tolist()  # the step's one wait for the device
    loss_broken, centre_broken, gradient_broken, stop = ranks.any(*(not good for good in finite), stop)
    if loss_broken or centre_broken:  # a broken centre makes a broken loss one step later
        raise NotFinite("the loss" if loss_broken else "the centre of the teacher's outputs")
    half = recipe.precision == "fp16"
    if gradient_broken and not half:
        raise NotFinite("a gradient (the loss is finite)")
    if now.last_layer_frozen:
        freeze_last_layer(learner.student)
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    if half:  # an overflow is of every day there: the scaler has left the step out, so the teacher must not move either
        numbers["skipped_step"] = torch.tensor(float(gradient_broken))
    if not gradient_broken:
        update_teacher(learner.student, learner.teacher, now.momentum)
    return numbers, stop


def _gradients(
    learner: Learner, views: Sequence[Tensor], now: Now, recipe: Recipe, device: torch.device
) -> dict[str, Tensor]:
    """Leaves the gradients of the share's mean loss in the student, computed in `run.accumulate` parts; ranks are averaged, and
    the centre moves, with the last part."""
    kind = _TYPES[recipe.precision]
    parts = list(zip(*(view.chunk(recipe.run.accumulate) for view in views), strict=True))
    numbers: dict[str, Tensor] = {}
    if not learner.loss.started and len(parts) > 1:  # in the first step: the centre's start is of the whole batch
        with torch.no_grad(), torch.autocast(device.type, kind, enabled=kind != torch.float32):
            learner.loss.start([learner.teacher(part[:2]) for part in parts])
    for place, part in enumerate(parts, start=1):
        last = place == len(parts)
        with _exchange(learner.wrapped, last):
            with torch.autocast(device.type, kind, enabled=kind != torch.float32):
                with torch.no_grad():
                    targets = learner.teacher(part[:2])
                scores = learner.wrapped(part)
            loss, found = learner.loss(scores, targets, now.teacher_temperature, update_center=last)
            share = len(part[0]) / len(views[0])
            learner.scaler.scale(loss * share).backward()
        for name, value in {"loss": loss.detach(), **found}.items():
            if name in ("teacher_entropy", "center_norm"):  # of all parts so far
                numbers[name] = value
            else:
                numbers[name] = numbers[name] + value * share if name in numbers else value * share
    return numbers


def _clip(student: nn.Module, recipe: Recipe) -> Tensor:
    """Clips the gradients as the recipe says; their norm before."""
    largest = recipe.optimizer.clip
    if largest is None:
        return gradient_norm(student.parameters())
    return (clip_global if recipe.optimizer.clip_by == "global" else clip_per_parameter)(student.parameters(), largest)


def _exchange(wrapped: nn.Module, now: bool) -> AbstractContextManager[None]:
    """Whether this backward pass averages gradients over the ranks."""
    if isinstance(wrapped, DistributedDataParallel) and not now:
        return wrapped.no_sync()
    return nullcontext()
