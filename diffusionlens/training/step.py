"""One training step, in DINO's order."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffusionlens.errors import InputError
from diffusionlens.training.ranks import Ranks

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class NotFinite(Exception):  # noqa: N818  (it names what happened, not a fault of the program)
    """The loss is NaN or infinite on some rank; no weight has been changed by it."""


@dataclass
class Learner:
    """Everything that a step changes. `student` is what is called (wrapped for several ranks); `plain` the same unwrapped."""

    plain: nn.Module
    student: nn.Module
    teacher: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "student": self.plain.state_dict(),
            "teacher": self.teacher.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loss": self.loss.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """From a checkpoint of the same recipe."""
        self.plain.load_state_dict(state["student"])
        self.teacher.load_state_dict(state["teacher"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.loss.load_state_dict(state["loss"])

    def finite(self) -> bool:
        """Whether all weights are: those of a damaged network must not replace good ones on the disk."""
        norms = torch._foreach_norm([parameter.detach() for parameter in self.plain.parameters()], torch.inf)
        return bool(torch.isfinite(torch.stack(list(norms))).all())


def train_step(
    learner: Learner,
    views: Sequence[Tensor],
    now: Schedule,
    precision: str,
    parts: int,
    ranks: Ranks,
    stop: bool,
) -> tuple[dict[str, Tensor], bool]:
    """Takes one step on `views`, each [B,3,H,W] (this rank's share of the batch), the two global ones first.

    Args:
        now: what the schedules say for this step.
        parts: pieces that the share is computed in.
        stop: whether this rank was asked to stop.

    Returns:
        The loss and its diagnostics (means over the pieces, 0-dimensional), and whether any rank was asked to stop.

    Raises:
        NotFinite: the loss is not, on some rank; raised on every rank.
    """
    set_schedule(learner.optimizer, now.lr, now.weight_decay)
    learner.optimizer.zero_grad(set_to_none=True)
    numbers: dict[str, Tensor] = {}
    pieces = list(zip(*(view.chunk(parts) for view in views), strict=True))
    for place, piece in enumerate(pieces):
        last = place == len(pieces) - 1
        with hold_back(learner.student, last):
            with torch.autocast(ranks.device.type, _TYPES[precision], enabled=precision != "fp32"):
                with torch.no_grad():
                    targets = learner.teacher(piece[:2])
                outputs = learner.student(piece)
            loss, found = learner.loss(outputs, targets, now.teacher_temperature)
            learner.scaler.scale(loss / len(pieces)).backward()
        for name, value in {"loss": loss.detach(), **found}.items():
            numbers[name] = numbers.get(name, 0) + value / len(pieces)
    broken, stop = ranks.any(not bool(torch.isfinite(numbers["loss"])), stop)
    if broken:
        raise NotFinite
    return numbers, stop
