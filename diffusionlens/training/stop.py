"""Signals that ask a run to stop: it ends the step it is in, writes a checkpoint and leaves."""

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Use as a context manager; `asked` turns true with SIGTERM, or with the first Ctrl-C (a second one interrupts)."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        try:
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread, which alone gets signals
            self._before = {}
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
