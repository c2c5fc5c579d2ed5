"""The processes of a DataLoader: a death among them is told in one place, and none is left behind."""

import multiprocessing.connection
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader

from diffusionlens.conditions import refuse_shortage
from diffusionlens.errors import InputError

T = TypeVar("T")


class ReadingProcesses(Generic[T]):
    """Iterates over a DataLoader; use as a context manager, at whose end no process of it lives.

    Args:
        loader: what to iterate over.
        fewer: the option that asks for fewer processes, for the message.

    Raises:
        InputError: a process died, or the machine has run out of open files. A death is raised by the iteration alone: torch
            by itself raises such news wherever the main thread happens to be, in the middle of a step or of a file.
    """

    def __init__(self, loader: DataLoader[Any], fewer: str) -> None:
        self._fewer = fewer
        self._batches: Iterator[T] | None = None
        try:
            self._batches = iter(loader)
        except OSError as error:
            _clear_away(error)
            refuse_shortage(error, "no process that reads pictures can be started")
            raise
        self._workers = list(getattr(self._batches, "_workers", []))
        if self._workers:
            _tell_at_the_iteration()

    def __enter__(self) -> "ReadingProcesses[T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is not None and kind is not GeneratorExit:
            self._kill()  # one that died may have held the lock that the others wait for: they would not hear a polite word
        self._batches = None  # tells them to end, and waits a while
        self._kill()

    def __iter__(self) -> "ReadingProcesses[T]":
        return self

    def __next__(self) -> T:
        assert self._batches is not None
        self._refuse_deaths()
        try:
            return self._wait(self._batches)
        except StopIteration:
            raise
        except Exception as error:  # whatever half a message from a dead process was taken for
            _Waiting.now = False
            self._await_a_death(seconds=2)
            self._refuse_deaths()
            refuse_shortage(error, "a batch of pictures could not be handed over")
            raise

    @staticmethod
    def _wait(batches: Iterator[T]) -> T:
        _Waiting.now = threading.current_thread() is threading.main_thread()
        try:
            return next(batches)
        finally:
            _Waiting.now = False  # before anything is done about an error: another process may die meanwhile

    def _await_a_death(self, seconds: float) -> None:
        """Its pipes break before its end is known; `join` waits for that, where asking for the exit status would not."""
        ready = (
            multiprocessing.connection.wait([worker.sentinel for worker in self._workers], seconds)
            if self._workers
            else []
        )
        for worker in self._workers:
            if worker.sentinel in ready:
                worker.join(seconds)

    def _refuse_deaths(self) -> None:
        for worker in self._workers:
            if worker.exitcode not in (None, 0):
                how = f"signal {-worker.exitcode}" if worker.exitcode < 0 else f"exit status {worker.exitcode}"
                raise InputError(
                    f"a process that reads pictures died ({how}); it may have run out of memory: use fewer ({self._fewer})"
                )

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()
        for worker in self._workers:
            worker.join()


def _clear_away(error: OSError) -> None:
    """Lets torch's half-made iterator go in silence: its end fails too, and would be told after the one line."""
    told, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = told


class _Waiting:
    """Whether the main thread waits for a batch, where news of a death must wake it up."""

    now = False


def _tell_at_the_iteration() -> None:
    """Lets torch's handler of ended child processes raise only while the main thread waits for a batch."""
    told = signal.getsignal(signal.SIGCHLD)
    if not callable(told) or isinstance(told, _Handler) or threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGCHLD, _Handler(told))


class _Handler:
    def __init__(self, told: Callable[[int, FrameType | None], Any]) -> None:
        self._told = told

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self._told(number, frame)
        except RuntimeError as error:
            if _Waiting.now or "DataLoader worker" not in str(error):
                raise
