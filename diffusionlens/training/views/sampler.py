"""Which pictures a rank sees at which step: a pure function of seed, epoch and step, so that any step can be resumed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler

from diffusionlens.errors import InputError


@dataclass(frozen=True)
class SampleKey:
    """A picture's place in the data set, and the epoch, which with the run's seed fixes its augmentation."""

    epoch: int
    index: int


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a run.

    An epoch is a permutation of the data set, cut into whole batches; what is left over (another part in each epoch) is
    dropped. Of every batch rank r takes pictures r, r + ranks, r + 2 ranks, ...: the batch itself is the same for any
    number of ranks.
    """

    pictures: int
    batch_size: int
    seed: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.ranks:
            near = max(self.batch_size // self.ranks, 1) * self.ranks
            raise InputError(
                f"batch_size {self.batch_size} can't be shared by {self.ranks} ranks; use a multiple of that, as {near}"
            )
        if self.pictures < self.batch_size:
            raise InputError(
                f"the data hold {self.pictures} pictures, fewer than one batch of {self.batch_size}; "
                f"use --set batch_size={max(self.pictures // self.ranks * self.ranks, self.ranks)} or more pictures"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self.pictures // self.batch_size

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of an epoch, int64 [pictures]."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.pictures)

    def batch(self, order: np.ndarray, step: int) -> np.ndarray:
        """This rank's share of batch `step` of an epoch with that order."""
        start = step * self.batch_size
        return order[start + self.rank : start + self.batch_size : self.ranks]


class RunSampler(Sampler[list[SampleKey]]):
    """A rank's batches from step `start` to step `end` of the run, over the borders of epochs."""

    def __init__(self, plan: BatchPlan, start: int, end: int) -> None:
        self.plan, self.start, self.end = plan, start, end

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[list[SampleKey]]:
        length = self.plan.steps_per_epoch
        order, ordered = self.plan.order(self.start // length), self.start // length
        for step in range(self.start, self.end):
            epoch = step // length
            if epoch != ordered:
                order, ordered = self.plan.order(epoch), epoch
            yield [SampleKey(epoch, int(index)) for index in self.plan.batch(order, step % length)]
