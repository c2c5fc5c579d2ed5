"""The device to measure on, and what to do when its memory is not enough."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError


def resolve_device(name: str, processes: Processes | None = None) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU. Several processes with `auto` or `cuda` take one GPU each in turn.

    Raises:
        InputError: there is no such device, or it does not answer.
    """
    processes = processes or Processes()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{place}" for place in range(gpus)), *["mps"] * torch.backends.mps.is_available()]
    chosen = ("cuda" if gpus else "cpu") if name == "auto" else name
    if chosen == "cuda" and gpus and processes.count > 1:
        chosen = f"cuda:{int(os.environ.get('LOCAL_RANK', processes.rank)) % gpus}"
    if chosen not in there and not (chosen == "cuda" and gpus):
        raise InputError(f"--device {name} can't be used: this machine and this torch have {', '.join(there)}")
    device = torch.device(chosen)
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"--device {name} is there and can't be used ({reason}); free it or choose another") from None
    return device


@contextmanager
def enough_memory(doing: str, advice: str) -> Iterator[None]:
    """Turns a shortage of memory into one line: "not enough memory for `doing`; `advice`"."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise InputError(f"not enough memory for {doing}; {advice} ({reason})") from None


# What torch, CUDA's libraries and C++ say where they have no class of their own for it.
_WORDS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "cannot allocate memory",
    "alloc_failed",
    "bad_alloc",
)


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _WORDS)
