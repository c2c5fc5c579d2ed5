"""Several processes (torchrun) sharing the pictures of one measurement."""

import os
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from diffusionlens.analysis.diagnostic import Diagnostic


@dataclass(frozen=True)
class Processes:
    """This process's place among all. The first one (`rank` 0) gathers and writes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> "Processes":
        """Joins the group that torchrun has set up; a single process without it.

        Statistics live on the CPU, so that the gathering goes over gloo on every machine.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return cls(dist.get_rank(), count)

    def leave(self) -> None:
        """Leaves the group; without this torch warns at the end of the program."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, value: Any) -> list[Any]:
        """Every process's `value` in the order of the ranks; in processes other than the first, its own only."""
        if self.count == 1:
            return [value]
        values: list[Any] | None = [None] * self.count if self.rank == 0 else None
        dist.gather_object(value, values)
        return [value] if values is None else values

    def merge(self, diagnostic: Diagnostic) -> None:
        """Brings what all processes' diagnostics have seen into the first one's, by its states' own reductions."""
        diagnostic.finish()
        for other in self.gather(diagnostic.metric_state)[1:]:
            diagnostic.merge_state(other)
