"""DINO's loss: cross-entropy between the centred, sharpened teacher and the student, over all pairs of different views."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, distributed, nn

from diffusionlens.errors import InputError

CenterStart = Literal["zero", "first_batch"]


class DINOLoss(nn.Module):
    """The loss, and the centre as its state. Everything inside is float32, whatever the scores come in.

    H(softmax((t - c) / teacher temperature), softmax(s / student temperature)), averaged over the pictures and over the
    pairs of a teacher view and a student view that is not the same one; c is the moving average of the teacher's scores,
    over all processes. Source: Caron et al., ICCV 2021 (arXiv 2104.14294), equations 1 to 4.

    Args:
        center_start: where c starts: at 0 (DINO), or at the mean of the first batch, before that batch is used.
    """

    center: Tensor

    def __init__(
        self,
        out_dim: int,
        student_temperature: float = 0.1,
        center_momentum: float = 0.9,
        center_start: CenterStart = "zero",
    ) -> None:
        super().__init__()
        if student_temperature <= 0 or not 0 <= center_momentum <= 1:
            raise InputError(
                f"student temperature {student_temperature} and centre momentum {center_momentum} are no loss; wanted a "
                f"temperature above 0 and a momentum from 0 to 1"
            )
        self.student_temperature, self.center_momentum = student_temperature, center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))
        self.started = center_start == "zero"  # a plain bool: a tensor would make the host wait for the device
        # Of the parts of the batch so far: sums and counts of teacher scores, which the centre has not seen, and of targets.
        self._pending: list[Tensor] = []
        self._targets: list[Tensor] = []

    def forward(
        self, student: Tensor, teacher: Tensor, teacher_temperature: float, update_center: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch of B pictures.

        Args:
            student: [V*B,K] scores of all V views, view by view, the teacher's views first.
            teacher: [2*B,K] scores of the two global views.
            update_center: False for all but the last part of a batch that is computed in parts: the centre then moves
                once, by the mean of the whole batch (which `start` must have seen, where the centre has not started).

        Returns:
            The loss, and 0-dimensional numbers to watch, in nats but for the last: `teacher_entropy` of the teacher's mean
            distribution over the batch, in its parts so far (ln K: all prototypes in use), `sample_entropy` (mean entropy of a
            single picture's), `kl` from teacher to student (loss - sample_entropy), `center_norm`. Like the loss, and but for
            the last, they are of this process's pictures.
        """
        with torch.autocast(student.device.type, enabled=False):
            student, teacher = student.float(), teacher.detach().float()
            batch = len(teacher) // 2
            if batch == 0 or len(teacher) % 2 or len(student) % batch or len(student) < len(teacher):
                raise ValueError(
                    f"{len(student)} student and {len(teacher)} teacher rows are no whole views, two of which"
                )
            if not self.started:
                self.start([teacher])
            targets = ((teacher - self.center) / teacher_temperature).softmax(-1).unflatten(0, (2, batch))
            logs = (student / self.student_temperature).log_softmax(-1).unflatten(0, (-1, batch))
            # For each teacher view, the sum over all student views less its own: two products in place of 2 (V - 1).
            others = logs.sum(0) - logs[:2]
            loss = -(targets * others).sum() / (2 * batch * (len(logs) - 1))
            self._pending.append(_sum_and_count(teacher))
            self._targets.append(_sum_and_count(targets.flatten(0, 1)))
            with torch.no_grad():
                sample_entropy = torch.special.entr(targets).sum(-1).mean()
                seen = torch.stack(self._targets).sum(0)
                if update_center:
                    self._update()
                found = {
                    "teacher_entropy": torch.special.entr(seen[:-1] / seen[-1]).sum(),
                    "sample_entropy": sample_entropy,
                    "kl": loss.detach() - sample_entropy,
                    "center_norm": self.center.norm(),
                }
        return loss, found

    def get_extra_state(self) -> dict[str, bool]:
        """For the state dict: whether the centre has started."""
        return {"started": self.started}

    def set_extra_state(self, state: dict[str, bool]) -> None:
        """From the state dict."""
        self.started = state["started"]

    @torch.no_grad()
    def start(self, parts: Iterable[Tensor]) -> None:
        """Puts the centre at the mean of a whole batch, given as the teacher's scores [2*B,K] of its parts."""
        self.center.copy_(_mean(torch.stack([_sum_and_count(part.float()) for part in parts]).sum(0)))
        self.started = True

    @torch.no_grad()
    def _update(self) -> None:
        mean = _mean(torch.stack(self._pending).sum(0))
        self.center.mul_(self.center_momentum).add_(mean, alpha=1 - self.center_momentum)
        self._pending.clear()
        self._targets.clear()


def _sum_and_count(scores: Tensor) -> Tensor:
    """[K+1]: the column sums and the number of rows."""
    return torch.cat([scores.sum(0), scores.new_tensor([len(scores)])])


def _mean(sum_and_count: Tensor) -> Tensor:
    """[1,K]: the mean over all processes."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(sum_and_count)
    return (sum_and_count[:-1] / sum_and_count[-1])[None]
