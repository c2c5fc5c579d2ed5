"""Progress for people: a bar on a terminal, a plain line now and then elsewhere. Always on standard error."""

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_EVERY = 10.0  # seconds between plain lines


class ProgressReport:
    """Use as a context manager, and call with (what, done, total)."""

    def __init__(self) -> None:
        self._shown = int(os.environ.get("RANK", "0")) == 0
        self._terminal = self._shown and sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last = 0.0

    def __enter__(self) -> "ProgressReport":
        self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._terminal:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what], completed=done, total=total)
        elif self._shown and (done in (0, total) or time.monotonic() - self._last > _EVERY):
            self._last = time.monotonic()
            print(f"{what}: {done}/{total} pictures", file=sys.stderr, flush=True)
