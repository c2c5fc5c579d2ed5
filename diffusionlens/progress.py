"""What people see while a command works: a bar on a terminal, a plain line now and then elsewhere. On standard error.

A reader that has gone away (a closed terminal, a pipe into `head`) never ends the work.
"""

import os
import sys
import time
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from diffusionlens.errors import printable

_EVERY = 10.0  # seconds between plain lines


def speaks() -> bool:
    """Whether this process talks to people: of several that torchrun has started, only the first."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def complain(text: str) -> None:
    """One line on standard error, from the process that talks to people."""
    if speaks():
        with suppress(OSError):
            print(printable(text), file=sys.stderr, flush=True)


class ProgressReport:
    """Use as a context manager, and call with (what, done, total)."""

    def __init__(self) -> None:
        self._terminal = speaks() and sys.stderr is not None and sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last = 0.0

    def __enter__(self) -> "ProgressReport":
        with suppress(OSError):
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with suppress(OSError):
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._terminal:
            with suppress(OSError):
                if what not in self._tasks:
                    self._tasks[what] = self._bar.add_task(printable(what), total=total)
                self._bar.update(self._tasks[what], completed=done, total=total)
        elif done in (0, total) or time.monotonic() - self._last > _EVERY:
            self._last = time.monotonic()
            complain(f"{what}: {done}/{total}")
