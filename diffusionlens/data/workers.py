"""Processes that read pictures, when one of them has died."""

from contextlib import suppress
from typing import Any


def kill_workers(batches: Any) -> None:
    """Ends what is left of the processes behind the iterator of a DataLoader, with the signal that they can't wait with: one that
    died may have held the lock that another waits for, and torch, which asks politely, would wait for that one for ever."""
    for worker in getattr(batches, "_workers", []):
        with suppress(OSError, ValueError):
            worker.kill()
