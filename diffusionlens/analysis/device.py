"""The device to measure on, and pictures that are too large for it."""

import os

import torch

from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError, in_short
from diffusionlens.memory import free_memory
from diffusionlens.models.backbone import Backbone

_MOST_PATCHES = (
    2**16
)  # 256 x 256, a picture of 4096 pixels; beyond, a CPU takes hours for one picture, and says nothing meanwhile


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
        reason = in_short(error)
        raise InputError(f"--device {name} is there and can't be used ({reason}); free it or choose another") from None
    return device


def refuse_too_large(backbone: Backbone, size: tuple[int, int], device: torch.device, *, attention: bool) -> None:
    """Refuses a picture size (H, W) whose tokens are too many, before anything of that size is made.

    Args:
        attention: whether the maps of a layer will be looked at: weights and logits of all heads, one picture at a time.

    Raises:
        InputError: more patches than any machine takes, or maps that do not fit into what memory is free.
    """
    grid = tuple(length // patch for length, patch in zip(size, backbone.patch_size, strict=True))
    patches = grid[0] * grid[1]
    if patches > _MOST_PATCHES:
        raise InputError(
            f"size {size[0]}x{size[1]} makes {patches} patches for {backbone.label}; wanted {_MOST_PATCHES} at most, since "
            f"attention takes time by their square"
        )
    needed = 2 * backbone.heads * (backbone.prefix + patches) ** 2 * 4
    free = free_memory(device) if attention else None
    if free is not None and needed > free:
        raise InputError(
            f"size {size[0]}x{size[1]} makes {patches} patches for {backbone.label}, and the attention maps of one picture take "
            f"{needed / 1e9:.1f} GB of memory, where {free / 1e9:.1f} are free; give a smaller --size, or analyses "
            f"without attention"
        )
