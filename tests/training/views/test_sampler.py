"""Which pictures are seen when: every rank its own, all of them together all, from any step on."""

from dataclasses import replace

import numpy as np
import pytest

from diffusionlens.errors import InputError
from diffusionlens.training.views.sampler import BatchPlan, RunSampler, SampleKey


def keys(plan: BatchPlan, start: int, end: int) -> list[list[SampleKey]]:
    return list(RunSampler(plan, start, end))


def test_an_epoch_shows_every_picture_once() -> None:
    plan = BatchPlan(pictures=60, batch_size=12, seed=3)
    for epoch in range(2):
        seen = [key.index for batch in keys(plan, 5 * epoch, 5 * epoch + 5) for key in batch]
        assert sorted(seen) == list(range(60))
        assert seen != list(range(60))


def test_ranks_share_each_batch_without_overlap() -> None:
    plan = BatchPlan(pictures=50, batch_size=12, seed=0)
    whole = keys(plan, 0, 9)
    for count in (2, 3, 4):
        shares = [keys(replace(plan, rank=rank, ranks=count), 0, 9) for rank in range(count)]
        for step, batch in enumerate(whole):
            parts = [set(share[step]) for share in shares]
            assert {len(part) for part in parts} == {12 // count}
            assert set.union(*parts) == set(batch)
            assert sum(map(len, parts)) == len(set(batch)) == 12


def test_the_rest_that_is_dropped_is_another_one_in_each_epoch() -> None:
    plan = BatchPlan(pictures=50, batch_size=12, seed=0)
    seen = [{key.index for batch in keys(plan, 4 * epoch, 4 * epoch + 4) for key in batch} for epoch in range(20)]
    assert {len(one) for one in seen} == {48}
    assert len({frozenset(set(range(50)) - one) for one in seen}) > 15
    assert set.union(*seen) == set(range(50))


def test_any_step_can_be_resumed() -> None:
    plan = BatchPlan(pictures=50, batch_size=12, seed=1)
    straight = keys(plan, 0, 14)
    for start in (1, 3, 4, 5, 13, 14):  # inside an epoch, at its end, behind it
        assert keys(plan, start, 14) == straight[start:]


def test_epoch_and_seed_change_the_order() -> None:
    plan = BatchPlan(pictures=1000, batch_size=10, seed=0)
    orders = [plan.order(0), plan.order(1), BatchPlan(1000, 10, 1).order(0)]
    for one in range(3):
        for other in range(one):
            # Two independent permutations agree in one place on average (variance one).
            assert np.count_nonzero(orders[one] == orders[other]) < 8


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(InputError, match="8 pictures, fewer than one batch of 12"):
        BatchPlan(8, 12, 0)
    with pytest.raises(InputError, match="batch_size 13 can't be shared by 2 ranks; use a multiple of that, as 12"):
        BatchPlan(100, 13, 0, ranks=2)
