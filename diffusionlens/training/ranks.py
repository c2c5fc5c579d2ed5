"""The processes of one run (torchrun): who this one is, and the few things they tell each other."""

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from diffusionlens.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """This process among `count`; rank 0 writes. `device` is where its model is."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: str) -> "Ranks":
        """Joins the group that torchrun has set up (NCCL on GPUs, gloo on CPUs); a single process without it.

        Raises:
            InputError: no such device on this machine.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        place = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")), count)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        if count == 1:
            return cls(place)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
        return cls(place, dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        """Leaves the group; without this torch warns at the end of the program."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on any rank: one small exchange for all of them."""
        if self.count == 1:
            return list(flags)
        shared = torch.tensor(flags, dtype=torch.float32, device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [bool(flag) for flag in shared.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` in the order of the ranks, on every rank. Values must be picklable."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Returns when every rank has come here."""
        if self.count > 1:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)


def choose_device(text: str, local_rank: int = 0, count: int = 1) -> torch.device:
    """ "auto" is this rank's GPU where there are any, else the CPU.

    Raises:
        InputError: no such device on this machine.
    """
    gpus = torch.cuda.device_count()
    if text in ("auto", "cuda") and (gpus or text == "cuda"):
        if local_rank >= gpus:
            raise InputError(
                f"rank {local_rank} of this machine has no GPU (there are {gpus}); use --nproc-per-node={max(gpus, 1)} or "
                f"--set run.device=cpu"
            )
        return torch.device("cuda", local_rank)
    try:
        device = torch.device("cpu" if text == "auto" else text)
        if device.type not in ("cpu", "cuda", "mps"):  # torch knows some where nothing can be computed
            raise RuntimeError
        torch.zeros(1, device=device if device.type == "mps" else "cpu")
    except RuntimeError:
        raise InputError(f"run.device is '{text}'; wanted auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and count > 1:
        raise InputError(f"run.device is '{text}' for {count} ranks; with several ranks say auto, cuda or cpu")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise InputError(f"run.device is '{text}', but this machine has {gpus} GPUs; use --set run.device=cpu")
    return device
