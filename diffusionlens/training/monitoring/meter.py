"""Means of what the steps report, between two lines of the log; and how fast they were."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from diffusionlens.training.dino.timetable import Now


class Meter:
    """Sums stay on the device, so that a step does not wait for the numbers of its own log."""

    def __init__(self, batch_size: int) -> None:
        self._batch = batch_size
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._waited = 0.0
        self._since = self._mark = time.perf_counter()

    def waiting(self) -> None:
        """The step begins to wait for its pictures."""
        self._mark = time.perf_counter()

    def working(self) -> None:
        """The pictures are there."""
        self._waited += time.perf_counter() - self._mark

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens inside is not training, and its time does not count: checkpoints and diagnostics."""
        began = time.perf_counter()
        yield
        self._since += time.perf_counter() - began

    def add(self, numbers: Mapping[str, Tensor]) -> None:
        """The numbers of a step, each 0-dimensional."""
        for name, value in numbers.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.detach().clone()
        self._steps += 1

    def line(self, step: int, epoch: float, now: Now) -> dict[str, Any]:
        """A line of the log for the steps since the last one: means, schedules, `images_per_second` (all ranks) and `data_wait`
        (share of the time)."""
        elapsed = max(time.perf_counter() - self._since, 1e-9)
        means = {name: round(float(total) / self._steps, 6) for name, total in self._sums.items()}
        line = {
            "step": step,
            "epoch": round(epoch, 4),
            "time": round(time.time(), 3),
            **means,
            "entropy_gap": round(means["teacher_entropy"] - means["loss"], 6),
            "lr": now.lr,
            "weight_decay": now.weight_decay,
            "momentum": now.momentum,
            "teacher_temperature": now.teacher_temperature,
            "images_per_second": round(self._batch * self._steps / elapsed, 1),
            "data_wait": round(self._waited / elapsed, 4),
        }
        self._sums, self._steps, self._waited = {}, 0, 0.0
        self._since = time.perf_counter()
        return line
