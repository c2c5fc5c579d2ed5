"""Several processes (torchrun) sharing the pictures of one measurement."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from diffusionlens.analysis.diagnostic import Diagnostic
from diffusionlens.errors import InputError, OtherProcessError, in_short
from diffusionlens.shelf import Shelf

_PATIENCE = timedelta(days=30)
"""How long one process waits for the slowest. gloo's half hour would end long runs; a process that died is noticed at once."""
_FAILED = "failed"
_joins = count()


class _StoppedError(Exception):
    """Another process has failed, and there is no use in going on."""


@dataclass(frozen=True)
class Processes:
    """This process's place among all. The first one (`rank` 0) gathers and writes. `store` is theirs to leave word in; None
    where the caller has made the group."""

    rank: int = 0
    count: int = 1
    store: Store | None = None

    @classmethod
    def join(cls) -> "Processes":
        """Joins the group that torchrun has set up; a single process without it.

        Statistics live on the CPU, so that the gathering goes over gloo on every machine.

        Raises:
            InputError: WORLD_SIZE asks for several processes, and they don't find each other.
        """
        size = os.environ.get("WORLD_SIZE", "1")
        if size == "1":
            return cls()
        if dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        try:
            base, rank, number = next(rendezvous("env://"))
            store = PrefixStore(f"diffusionlens-{next(_joins)}", base)  # words of an earlier group are not of this one
            dist.init_process_group("gloo", store=store, rank=rank, world_size=number, timeout=_PATIENCE)
        except (ValueError, RuntimeError) as error:
            reason = in_short(error)
            raise InputError(
                f"WORLD_SIZE={size} asks for several processes, and they don't find each other ({reason}); start them with "
                f"torchrun, or unset WORLD_SIZE"
            ) from None
        return cls(rank, number, store)

    def leave(self) -> None:
        """Leaves the group; without this torch warns at the end of the program."""
        if self.store is not None and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done inside goes well in every process, or ends in every process. No collective call belongs inside.

        Raises:
            InputError: the first one of any process, in all of them.
            OtherProcessError: another process raised something else.
        """
        if self.count == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except _StoppedError:
            pass
        except Exception as error:
            own = error
            if self.store is not None:
                self.store.set(_FAILED, "yes")
        verdict = None if own is None else (isinstance(own, InputError), f"{type(own).__name__}: {own}", str(own))
        verdicts = [found for found in self._exchange(verdict) if found is not None]
        if own is not None and not isinstance(own, InputError):
            raise own
        for wrong_request, fault, message in verdicts:
            if not wrong_request:
                raise OtherProcessError(f"another process of this run failed ({fault})")
            raise InputError(message)

    def stop_with_others(self) -> None:
        """To be called now and then inside `together`: ends it when another process has failed."""
        if self.store is not None and self.store.check([_FAILED]):
            raise _StoppedError

    def gather(self, value: Any) -> list[Any]:
        """Every process's `value` in the order of the ranks; in processes other than the first, its own only."""
        if self.count == 1:
            return [value]
        values: list[Any] | None = [None] * self.count if self.rank == 0 else None
        with _peers():
            dist.gather_object(value, values)
        return [value] if values is None else values

    def share(self, value: Any) -> Any:
        """The first process's `value`, in all of them."""
        return value if self.count == 1 else self._exchange(value)[0]

    def merge(self, diagnostic: Diagnostic) -> None:
        """Brings what all processes' diagnostics have seen into the first one's: states by their own reductions, and shelves a
        few MiB at a time, all of them in the same order of processes.

        A shelf that only some processes have (their pictures may bring what the first one's lack) comes, too.

        Raises:
            InputError, OtherProcessError: as `together`; no process waits for rows that another could not give.
        """
        states = self.gather(diagnostic.metric_state)
        with self.together():
            for other in states[1:]:
                diagnostic.merge_state(other)
        if self.count == 1:
            return
        counts = self._exchange({name: shelf.settle() for name, shelf in diagnostic.shelves.items()})
        for name in sorted({name for of_one in counts for name in of_one}):
            shelf = diagnostic.shelves.setdefault(name, Shelf(diagnostic.storage))
            for sender in range(1, self.count):
                self._take_in(shelf, sender, counts[sender].get(name, 0))

    def _take_in(self, shelf: Shelf, sender: int, groups: int) -> None:
        """Puts the sender's `groups` of rows on the first process's shelf."""
        failure: Exception | None = None
        own = shelf.groups() if self.rank == sender else iter(())
        for _ in range(groups):
            rows = None
            try:
                rows = next(own, None)
            except InputError as error:  # the others wait for as many groups as were announced
                failure = error
            received = self.gather(rows)
            if self.rank != 0 or received[sender] is None:
                continue
            try:
                shelf.append(received[sender])
            except ValueError as error:
                failure = error
        with self.together():
            if failure is not None:
                raise failure

    def _exchange(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.count
        with _peers():
            dist.all_gather_object(values, value)
        return values


@contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = in_short(error)
        raise OtherProcessError(f"another process of this run ended in the middle ({reason})") from None
