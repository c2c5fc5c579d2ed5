"""What fits into memory: how much is free, and a shortage said in one line."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from diffusionlens.errors import InputError, in_short


@contextmanager
def enough_memory(doing: str, advice: str) -> Iterator[None]:
    """Turns a shortage of memory into one line: "not enough memory for `doing`; `advice`"."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise InputError(f"not enough memory for {doing}; {advice} ({in_short(error)})") from None


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on `device` now; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def peak_memory() -> int | None:
    """The most resident bytes that this process has had so far, the graphics card's aside; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource  # which Windows has not

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


# What torch, CUDA's libraries and C++ say where they have no class of their own for it.
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "alloc_failed",
    "bad_alloc",
)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory gave out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _WORDS)
