"""The loop of a run: step after step, with a log, checkpoints, and a way to stop at any moment without losing anything."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffusionlens.errors import InputError
from diffusionlens.memory import enough_memory
from diffusionlens.training.checkpoints.checkpoint import FORMAT, random_state
from diffusionlens.training.checkpoints.run_directory import RunDirectory
from diffusionlens.training.dino.step import Learner, NotFinite, train_step
from diffusionlens.training.dino.timetable import Timetable
from diffusionlens.training.monitoring.attention_support import attention_support
from diffusionlens.training.monitoring.log import ProgressLine, RunLog
from diffusionlens.training.monitoring.meter import Meter
from diffusionlens.training.monitoring.watch import CollapseWatch
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.stop import StopRequest
from diffusionlens.training.views.loader import ViewBatch

Prepare = Callable[[ViewBatch], list[Tensor]]
"""A batch from the workers to the views that the networks see, on the device; the two global ones first."""


@dataclass
class Run:
    """One start of a run: what it works with, and how far it is: `step` steps are done, `saved` of them are on the disk.
    `skipped` are the unreadable files met so far, with the reasons."""

    recipe: Recipe
    learner: Learner
    timetable: Timetable
    ranks: Ranks
    directory: RunDirectory
    log: RunLog
    data: dict[str, Any]
    step: int
    saved: int | None
    skipped: dict[str, str]


def run_loop(run: Run, batches: Iterator[ViewBatch], prepare: Prepare, after_save: Callable[[int], None]) -> str:
    """Trains to the end ("complete") or until some rank is asked to stop ("stopped").

    Raises:
        InputError: the loss or the weights are not finite, the data gave out, or the last checkpoint could not be written.
            Names the last good checkpoint.
    """
    recipe, timetable, ranks = run.recipe, run.timetable, run.ranks
    meter = Meter(recipe.batch_size)
    watch = CollapseWatch(recipe.head.out_dim, timetable.total)
    show = ProgressLine()
    stopped = False
    with StopRequest() as stop:
        if run.step == 0:
            with meter.aside():
                save(run, numbered=True)  # the untrained network: the honest baseline of every curve
                after_save(0)
        while run.step < timetable.total and not stopped:
            meter.waiting()
            try:
                batch = next(batches)
            except InputError as error:
                raise InputError(f"{error}; {way_back(run)}") from None
            meter.working()
            now = timetable.at(run.step)
            try:
                with _enough_memory(run):
                    views = prepare(batch)
                    numbers, stopped = train_step(run.learner, views, now, recipe, ranks, stop=stop.asked)
            except NotFinite as what:
                raise InputError(
                    f"{what} is not finite (NaN or infinity) at step {run.step + 1}; {way_back(run)}"
                ) from None
            run.step += 1
            run.skipped.update(batch.skipped)
            meter.add(numbers)
            if run.step % recipe.run.log_every == 0 or run.step == timetable.total:
                line = meter.line(run.step, run.step / timetable.steps_per_epoch, now)
                _tell(run, line, views[0], watch, show)
            due = timetable.saves(run.step)
            if due or stopped:
                with meter.aside():
                    save(run, numbered=due == "numbered", must=stopped or run.step == timetable.total)
                    if due == "numbered":
                        after_save(run.step)
    return "complete" if run.step == timetable.total else "stopped"


def save(run: Run, *, numbered: bool, must: bool = False) -> None:
    """Writes a checkpoint; every rank takes part. One that can't be written is a warning, and training goes on, unless it
    `must` be written.

    Raises:
        InputError: the weights are not finite (on every rank), or see `must`.
    """
    if not run.learner.finite():
        raise InputError(f"weights are not finite after step {run.step}; {way_back(run)}")
    shares = run.ranks.gather((random_state(run.ranks.device), run.skipped))
    for _, skipped in shares:
        run.skipped.update(skipped)
    if not run.ranks.first:
        return
    content = {
        "format": FORMAT,
        "step": run.step,
        "recipe": run.recipe.model_dump(mode="json"),
        **run.learner.state(),
        "random": [random for random, _ in shares],
        "ranks": run.ranks.count,
        "data": run.data,
        "skipped": run.skipped,
    }
    try:
        run.directory.save(content, run.learner.teacher, numbered=numbered, keep=run.recipe.checkpoint.keep)
        run.directory.note(skipped=run.skipped)
    except InputError as error:
        if must:
            raise InputError(f"{error}; {way_back(run)}") from None
        _warn(run, f"{error}; training goes on, and {way_back(run)}")
        return
    run.saved = run.step
    run.log.event("checkpoint", run.step, numbered=numbered, skipped=len(run.skipped))


def way_back(run: Run) -> str:
    """Where a run that can't go on may be taken up again."""
    if run.saved is None:
        return "there is no checkpoint yet"
    return f"the last good checkpoint is {run.directory.last} (step {run.saved}): continue from it with --resume"


def _enough_memory(run: Run) -> AbstractContextManager[None]:
    count = -(-run.recipe.batch_size // (run.ranks.count * run.recipe.run.accumulate))
    advice = (
        f"compute the batch in more parts (--set run.accumulate={2 * run.recipe.run.accumulate}), with the same result"
    )
    return enough_memory(f"{count} pictures at a time on {run.ranks.device}", f"{advice}; {way_back(run)}")


def _tell(run: Run, line: dict[str, Any], images: Tensor, watch: CollapseWatch, show: ProgressLine) -> None:
    if not run.ranks.first:
        return
    if run.recipe.model.attention != "softmax":
        line["attention_support"] = round(attention_support(run.learner.teacher.backbone, images), 3)
    run.log.step(line)
    show(line, run.timetable.total)
    if warning := watch.see(line):
        _warn(run, warning)


def _warn(run: Run, text: str) -> None:
    print(f"warning: step {run.step}: {text}", file=sys.stderr, flush=True)
    run.log.event("warning", run.step, text=text)
