"""Checkpoints: written whole or not at all, read without running code, and with everything that the next step needs."""

import os
import random
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from diffusionlens.errors import InputError, in_short
from diffusionlens.models.checkpoints.weights_file import read_weights

FORMAT = 1
_WORDS = 624  # of the state of a Mersenne twister
_CUDA = 16  # bytes of the state of CUDA's generator: seed and offset
KEYS = frozenset(
    {
        "format",
        "step",
        "recipe",
        "student",
        "teacher",
        "optimizer",
        "scaler",
        "loss",
        "random",
        "ranks",
        "data",
        "skipped",
    }
)


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content` (tensors and plain values, the keys `KEYS`) as `path`.

    Raises:
        InputError: it can't be written (a full disk); what stood there before is untouched.
    """
    assert set(content) == KEYS, set(content) ^ KEYS
    write_whole(path, lambda file: torch.save(dict(content), file))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU.

    Raises:
        InputError: not there, cut short, or not a checkpoint of this program.
    """
    content, _ = read_weights(path)
    if not set(content) >= KEYS:
        raise InputError(f"{path} is not a checkpoint of a training run; wanted RUN/checkpoints/last.pt")
    version = content["format"]
    if type(version) is not int or version != FORMAT:
        raise InputError(
            f"{path} has format {in_short(version)}, and this version reads {FORMAT}; update diffusionlens"
        )
    return dict(content)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file under a temporary name, forces it to the disk and gives it its own name.

    Raises:
        InputError: it can't be written; what stood there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    remembered: list[OSError] = []
    try:
        with temporary.open("wb") as file:
            write(cast(BinaryIO, _Remembering(file, remembered)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        reason = getattr(remembered[0] if remembered else error, "strerror", None) or in_short(error)
        raise InputError(f"{path} could not be written ({reason}); make room and continue with --resume") from None
    finally:
        temporary.unlink(missing_ok=True)


class _Remembering:
    """A file that keeps the error of a write: torch's writer turns what the file raises into an error without a reason."""

    def __init__(self, file: BinaryIO, errors: list[OSError]) -> None:
        self._file, self._errors = file, errors
        self.flush = file.flush

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self._errors.append(error)
            raise


def link_or_copy(source: Path, target: Path) -> None:
    """`target` with the content of `source`, without a second copy on disks that can.

    Raises:
        InputError: it can't be written.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        temporary.replace(target)
        temporary.unlink(missing_ok=True)  # a name that was a link to the same file already stays otherwise
    except OSError:
        write_whole(target, lambda file: file.write(source.read_bytes()))


def _sync_folder(folder: Path) -> None:
    """Makes a new name in a folder survive a power cut, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def random_state(device: torch.device) -> dict[str, Any]:
    """Where every random generator of this process stands, as tensors and plain values."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *(float(value) for value in rest)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Puts every random generator of this process where `random_state` found it."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def random_fault(state: Any) -> str:
    """What is wrong with something that should be what `random_state` gave; "" where it can be restored.

    The generators themselves look at little of it, and one that stands outside its own table reads foreign memory.
    """
    try:
        version, numbers, cached = state["python"]
        if version != 3 or len(numbers) != _WORDS + 1 or not all(type(number) is int for number in numbers):
            return "python"
        random.Random().setstate(state["python"])
        if cached is not None and not (type(cached) is float and isfinite(cached)):
            return "python"
        name, keys, *rest = state["numpy"]
        position, has_gauss, cached = rest
        words = torch.is_tensor(keys) and keys.dtype == torch.int64 and keys.shape == (_WORDS,)
        if name != "MT19937" or not words or int(keys.min()) < 0 or int(keys.max()) >= 2**32:
            return "numpy"
        if position not in range(_WORDS + 1) or has_gauss not in (0, 1) or not isfinite(cached):
            return "numpy"
        torch.Generator().set_state(state["torch"])
        cuda = state["cuda"]
        if cuda is not None and not (torch.is_tensor(cuda) and cuda.dtype == torch.uint8 and cuda.shape == (_CUDA,)):
            return "cuda"
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        return in_short(error, 80)
    return ""


def seed_everything(seed: int, rank: int, step: int) -> None:
    """Random generators of a rank that starts at `step` without a saved state: apart from every other rank's and start's."""
    words = np.random.SeedSequence((seed, rank, step)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # CUDA's too
