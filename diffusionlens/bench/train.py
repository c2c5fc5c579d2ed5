"""`bench train`: whole training steps with softmax and with entmax-1.5, alternated on the same stream of pictures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from diffusionlens.bench.machine import machine
from diffusionlens.data import open_data
from diffusionlens.errors import InputError
from diffusionlens.options import ROUNDS, STEPS
from diffusionlens.training.build import build_learner
from diffusionlens.training.checkpoints.checkpoint import seed_everything
from diffusionlens.training.dino.step import train_step
from diffusionlens.training.dino.timetable import Timetable
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe_files import read_recipe
from diffusionlens.training.views.loader import load_views
from diffusionlens.training.views.sampler import BatchPlan, RunSampler
from diffusionlens.training.views.views import make_cut, make_prepare

ATTENTIONS = ("softmax", "entmax15")


@dataclass(frozen=True)
class TrainRow:
    """Medians over the rounds. `step_ms`: views prepared on the device, forward, backward, update, without waiting for pictures;
    `ratio`: of the step to softmax's in the same round; `data_wait`: share of the time spent waiting for pictures."""

    attention: str
    images_per_second: float
    step_ms: float
    ratio: float
    data_wait: float


@dataclass(frozen=True)
class TrainBench:
    machine: str
    device: str
    threads: int
    recipe: str
    batch_size: int
    workers: int
    place: str
    rounds: int
    steps: int
    rows: list[TrainRow]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        lines = [
            f"{self.machine}, {self.device}, {self.threads} threads; {self.recipe}, batch {self.batch_size}, {self.workers} "
            f"workers, colours by {self.place}",
            f"medians of {self.rounds} alternated rounds of {self.steps} steps, on one stream of pictures",
            "",
            f"{'attention':<12}{'images/s':>10}{'ms a step':>12}{'ratio':>8}{'waiting for data':>19}",
        ]
        lines += [
            f"{row.attention:<12}{row.images_per_second:>10.1f}{row.step_ms:>12.1f}{row.ratio:>8.2f}{row.data_wait:>18.1%}"
            for row in self.rows
        ]
        return "\n".join(lines)


def bench_train(
    recipe: str = "tiny_scenes_softmax",
    data: str = "scenes:?n=512&size=64",
    settings: Sequence[str] = (),
    rounds: int = 7,
    steps: int = 5,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> TrainBench:
    """Trains the recipe with both attentions, `steps` steps at a time in turn.

    Both see the same stream of batches, so that the workers' head start while the other one computes belongs to neither.

    Raises:
        InputError: what `train` refuses, or fewer than one round or step.
    """
    ROUNDS.check(rounds)
    STEPS.check(steps)
    if threads is not None:
        torch.set_num_threads(threads)
    recipes = {name: read_recipe(recipe, (), [*settings, f"model.attention={name}"]) for name in ATTENTIONS}
    common = recipes[ATTENTIONS[0]]
    source = open_data(data, "--data")
    ranks = Ranks.join(common.run.device)
    try:
        if ranks.count > 1:
            raise InputError("bench train runs in one process; leave out torchrun")
        plan = BatchPlan(len(source), common.batch_size, common.seed, 0, 1)
        timetable = Timetable(common, plan.steps_per_epoch)
        now = timetable.at(timetable.total // 2)
        learners = {}
        for name, one in recipes.items():
            seed_everything(common.seed, 0, 0)
            learners[name] = build_learner(one, ranks, fresh=True)
        warmup = 2 * len(ATTENTIONS)
        sampler = RunSampler(plan, 0, warmup + rounds * steps * len(ATTENTIONS))
        batches = load_views(source, make_cut(common), sampler, common.run.workers, ranks.device)
        prepare = make_prepare(common, ranks.device)

        def spend(name: str, count: int) -> tuple[float, float]:
            """Seconds of waiting and of work."""
            waited = worked = 0.0
            for _ in range(count):
                began = time.perf_counter()
                batch = next(batches)
                got = time.perf_counter()
                train_step(learners[name], prepare(batch), now, recipes[name], ranks)
                if ranks.device.type == "cuda":
                    torch.cuda.synchronize(ranks.device)
                waited, worked = waited + got - began, worked + time.perf_counter() - got
            return waited, worked

        for name in ATTENTIONS:
            spend(name, warmup // len(ATTENTIONS))
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ATTENTIONS}
        for done in range(rounds):
            if progress is not None:
                progress("rounds", done, rounds)
            for name in ATTENTIONS:
                spent[name].append(spend(name, steps))
        if progress is not None:
            progress("rounds", rounds, rounds)
        device = ranks.device
    finally:
        ranks.leave()
    rows = [_row(name, spent, steps, common.batch_size) for name in ATTENTIONS]
    place = "the workers" if common.augmentation.place == "workers" else "the device"
    return TrainBench(
        machine(str(device)), str(device), torch.get_num_threads(), recipe, common.batch_size, common.run.workers, place, rounds,
        steps, rows,
    )  # fmt: skip


def _row(name: str, spent: dict[str, list[tuple[float, float]]], steps: int, batch_size: int) -> TrainRow:
    own, softmax = spent[name], spent[ATTENTIONS[0]]
    return TrainRow(
        name,
        median(steps * batch_size / (waited + worked) for waited, worked in own),
        median(1000 * worked / steps for _, worked in own),
        median(ours / theirs for (_, ours), (_, theirs) in zip(own, softmax, strict=True)),
        median(waited / (waited + worked) for waited, worked in own),
    )
