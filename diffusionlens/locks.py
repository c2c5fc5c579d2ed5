"""Locks that the system takes back when a process dies, however it dies; and temporary directories that hold one, so that what a
killed run left can be told from what is being written."""

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # Windows: nothing is locked, and nothing swept
    fcntl = None

_TRIES = 5
_held: set[int] = set()


class BusyError(Exception):
    """Another run holds it."""


class Lock:
    """Held until `release`, or until the process is gone. Where the file system or the system has no locks, nothing is held."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            _held.add(descriptor)

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None and self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self.release()


def _let_go() -> None:
    """A lock belongs to all who have the file open, and processes that read pictures outlive a killed parent for seconds."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def lock(path: Path) -> Lock:
    """Locks a file, made where it is missing, or a directory.

    Raises:
        BusyError: another run holds it.
        OSError: it can't be opened.
    """
    if fcntl is None:
        return Lock(None)
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BusyError(path) from None
    except OSError:  # a file system without locks
        os.close(descriptor)
        return Lock(None)
    return Lock(descriptor)


def temporary_prefix(kind: str) -> str:
    """How the temporary directories of this machine begin; a lock may not reach beyond it."""
    return f".diffusionlens-{kind}{zlib.crc32(node().encode(errors='replace')):08x}-"


@contextmanager
def temporary_directory(parent: Path, kind: str = "") -> Iterator[Path]:
    """A new directory in `parent`, gone afterwards unless it has been given another name. Those of the same kind that killed runs
    left there go first: a lock that can be taken belongs to nobody.

    Raises:
        OSError: it can't be made.
    """
    prefix = temporary_prefix(kind)
    sweep(parent, prefix)
    place, held = _make(parent, prefix)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        held.release()


def _make(parent: Path, prefix: str) -> tuple[Path, Lock]:
    for _ in range(_TRIES):
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            held = lock(place)
        except (BusyError, FileNotFoundError):  # another run swept between these two lines
            continue
        if place.exists():
            return place, held
        held.release()
    raise FileNotFoundError(f"temporary directories in {parent} vanish")


def sweep(parent: Path, prefix: str) -> None:
    """Removes the directories in `parent` that begin so and are held by nobody."""
    if fcntl is None:
        return
    with suppress(OSError):
        for left in sorted(parent.glob(f"{prefix}*")):
            if left.is_symlink() or not left.is_dir():
                continue
            with suppress(BusyError, OSError):
                found = lock(left)
                if found.held:
                    shutil.rmtree(left, ignore_errors=True)
                found.release()
