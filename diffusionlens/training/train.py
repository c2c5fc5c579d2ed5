"""`train`: a recipe and pictures to a run directory."""

import hashlib
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from diffusionlens.data import PictureSource, open_data
from diffusionlens.data.combined import Combined, combined
from diffusionlens.errors import InputError, OtherProcessError, in_short
from diffusionlens.invocation import command_line
from diffusionlens.memory import enough_memory
from diffusionlens.spec import given_path, parse_spec
from diffusionlens.training.build import build_learner
from diffusionlens.training.checkpoints.checkpoint import random_state, restore_random_state, seed_everything
from diffusionlens.training.checkpoints.resumption import check_fits, read_whole
from diffusionlens.training.checkpoints.run_directory import RunDirectory
from diffusionlens.training.dino.timetable import Timetable
from diffusionlens.training.loop import Prepare, Run, run_loop, way_back
from diffusionlens.training.monitoring.log import (
    JsonLines,
    RunLog,
    Sink,
    TensorBoard,
    WeightsAndBiases,
    check_extras,
    read_log,
)
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import CHANGEABLE, Recipe
from diffusionlens.training.recipe_files import differences, read_recipe, recipe_from
from diffusionlens.training.views.loader import ViewBatch, load_views
from diffusionlens.training.views.sampler import BatchPlan, RunSampler
from diffusionlens.training.views.views import make_cut, make_prepare

_ONE_CORE = 55  # pictures of 224 px that one core prepares a second with 2 + 8 views and augmentation (measured)


@dataclass(frozen=True)
class Trained:
    """How a run ended: `status` "complete" or "stopped" (asked to; resume it), after `step` steps of `total`."""

    run: Path
    status: str
    step: int
    total: int


def train(
    recipe: str | Path | Recipe,
    data: str | PictureSource | Sequence[str | PictureSource],
    out: Path | str,
    *,
    overlays: Sequence[str | Path] = (),
    settings: Sequence[str] = (),
    resume: bool = False,
    after_save: Callable[[Path, int], None] | None = None,
) -> Trained | None:
    """Trains, and leaves a run directory (layout: `diffusionlens.models.run_directory`).

    Args:
        recipe: a YAML file, the name of a shipped recipe, or a Recipe.
        data: a DATA string or a picture source, or several of them; labels and boxes are not looked at.
        out: the run directory to make, or with `resume` the one to go on with.
        overlays: recipes laid over the first.
        settings: "optimizer.lr=1e-3" and the like.
        resume: goes on with the same run from its last checkpoint; only `run.*` and `checkpoint.*` may differ.
        after_save: called on rank 0 with the run directory and the step after each numbered checkpoint; the other ranks
            wait.

    Returns:
        How it ended; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, overlays, settings)
    elif overlays or settings:
        raise InputError("overlays and settings go with the name of a recipe; a Recipe is final")
    check_extras(recipe)
    directory = RunDirectory(given_path("--out", out, "a run directory to make"))
    if resume:
        directory.check_old()
    source = _open(data)
    ranks = Ranks.join(recipe.run.device)
    try:
        if not resume and ranks.first:
            directory.check_new()
        ranks.wait()
        return _train(recipe, source, directory, ranks, resume, after_save)
    finally:
        directory.leave()
        ranks.leave()


def _train(
    recipe: Recipe,
    source: PictureSource,
    directory: RunDirectory,
    ranks: Ranks,
    resume: bool,
    after_save: Callable[[Path, int], None] | None,
) -> Trained | None:
    plan = BatchPlan(len(source), recipe.batch_size, recipe.seed, ranks.rank, ranks.count)
    timetable = Timetable(recipe, plan.steps_per_epoch)
    cut, prepare = make_cut(recipe), make_prepare(recipe, ranks.device)
    data = _identity(source)
    if directory.log.exists():
        read_log(directory.log)
    earlier = read_whole(directory.last) if resume else None
    if earlier is not None:
        _check_same(recipe, data, earlier, directory)
    seed_everything(recipe.seed, 0, 0)  # the same weights on every rank, and for any number of them
    with enough_memory(f"the networks of {recipe.model.name} on {ranks.device}", "choose a smaller model or head"):
        learner = build_learner(recipe, ranks, fresh=earlier is None)
    step = 0
    if earlier is not None:
        check_fits(directory.last, earlier, learner, timetable.total)
        learner.restore(earlier)
        step = int(earlier["step"])
    if earlier is not None and step == timetable.total and directory.read_manifest().get("status") == "complete":
        return _nothing_to_do(directory, ranks, step)
    if earlier is not None and earlier["ranks"] == ranks.count:
        restore_random_state(earlier["random"][ranks.rank], ranks.device)
    else:
        seed_everything(recipe.seed, ranks.rank, step)
    skipped = dict(earlier["skipped"]) if earlier is not None else dict(source.skipped)
    if ranks.first:
        manifest = _manifest(recipe, data, ranks, timetable, step, skipped)
        directory.begin(recipe, manifest, fresh=earlier is None)
        _announce(recipe, plan, timetable, step, directory)
    with _told(directory, ranks):
        log = RunLog(_sinks(recipe, directory, step) if ranks.first else [])
        saved = step if earlier is not None else None
        run = Run(recipe, learner, timetable, ranks, directory, log, data, step, saved, skipped)
        sampler = RunSampler(plan, step, timetable.total)
        batches = load_views(source, cut, sampler, recipe.run.workers, ranks.device)
        log.event("start", step, ranks=ranks.count, device=str(ranks.device), resumed=resume)
        with closing(batches):
            return _carry_out(run, batches, prepare, after_save)


def _nothing_to_do(directory: RunDirectory, ranks: Ranks, step: int) -> Trained | None:
    if not ranks.first:
        return None
    print(f"{directory.path}: the run is complete (step {step} of {step}); nothing to do", file=sys.stderr, flush=True)
    return Trained(directory.path, "complete", step, step)


@contextmanager
def _told(directory: RunDirectory, ranks: Ranks) -> Iterator[None]:
    """A run that ends in any other way than by itself says so in its manifest."""
    try:
        yield
    except BaseException as error:
        if ranks.first:
            reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {in_short(error)}"
            with suppress(InputError):  # a full disk; the error itself says more
                directory.note(status="failed", reason=reason)
        raise


def _carry_out(
    run: Run,
    batches: Iterator[ViewBatch],
    prepare: Prepare,
    after_save: Callable[[Path, int], None] | None,
) -> Trained | None:
    started = time.monotonic()
    ranks, directory, log = run.ranks, run.directory, run.log

    def hook(at: int) -> None:
        if ranks.first and after_save is not None:
            state = random_state(ranks.device)  # whoever looks on must not change what training draws next
            after_save(directory.path, at)
            restore_random_state(state, ranks.device)
        ranks.wait()

    try:
        status = run_loop(run, batches, prepare, hook)
    except InputError as error:
        log.event("failed", run.step, reason=str(error))
        if not ranks.first:  # the command speaks for the first process alone
            print(f"rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
        raise
    except RuntimeError as error:
        if ranks.count > 1 and any(word in str(error).lower() for word in ("connection", "gloo", "nccl")):
            reason = in_short(error)
            raise OtherProcessError(f"another process of this run ended ({reason}); {way_back(run)}") from None
        raise
    else:
        log.event(status, run.step)
        if ranks.first:
            directory.note(status=status, seconds=round(time.monotonic() - started, 1))
    finally:
        log.close()
    return Trained(directory.path, status, run.step, run.timetable.total) if ranks.first else None


def _open(data: str | PictureSource | Sequence[str | PictureSource]) -> PictureSource:
    several = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    return combined([open_data(one, "--data") if isinstance(one, str) else one for one in several])


def _identity(source: PictureSource) -> dict[str, Any]:
    """What the data are, wherever they lie: their number, and a hash of their names. Built-in data are their DATA string."""
    names = hashlib.sha256()
    for index in range(len(source)):
        names.update(source.name(index).encode(errors="backslashreplace") + b"\n")
    for part in source.sources if isinstance(source, Combined) else [source]:
        if not parse_spec(part.spec).rest:
            names.update(part.spec.encode())
    return {"spec": source.spec, "pictures": len(source), "names": names.hexdigest()}


def _check_same(recipe: Recipe, data: dict[str, Any], earlier: dict[str, Any], directory: RunDirectory) -> None:
    """Refuses to go on with other settings or pictures than the run had.

    Raises:
        InputError: what differs, key by key.
    """
    before = recipe_from(earlier["recipe"], f"in {directory.last}")
    if changed := differences(before, recipe, ignore=CHANGEABLE):
        raise InputError(
            f"--resume: the recipe is not that of the run in {directory.path} (run -> given): {'; '.join(changed)}. Give the "
            f"run's own ({directory.path / 'recipe.yaml'}), or begin a new run with --set init_from={directory.path}"
        )
    had = earlier["data"]
    if (had["pictures"], had["names"]) != (data["pictures"], data["names"]):
        raise InputError(
            f"--resume: the run in {directory.path} was trained on {had['spec']} ({had['pictures']} pictures), and "
            f"{data['spec']} ({data['pictures']}) holds others; give the same pictures, wherever they lie"
        )


def _manifest(
    recipe: Recipe, data: dict[str, Any], ranks: Ranks, timetable: Timetable, step: int, skipped: dict[str, str]
) -> dict[str, Any]:
    return {
        "kind": "training run",
        "status": "running",
        "step": step,
        "total_steps": timetable.total,
        "steps_per_epoch": timetable.steps_per_epoch,
        "data": data,
        "seed": recipe.seed,
        "command": command_line(),
        "ranks": ranks.count,
        "device": str(ranks.device),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "timm", "numpy")},
        "skipped": skipped,
    }


def _sinks(recipe: Recipe, directory: RunDirectory, step: int) -> list[Sink]:
    sinks: list[Sink] = [JsonLines(directory.log, step)]
    if recipe.run.tensorboard:
        sinks.append(TensorBoard(directory.path / "tensorboard"))
    if recipe.run.wandb is not None:
        sinks.append(WeightsAndBiases(recipe.run.wandb, directory.path, recipe.model_dump(mode="json")))
    return sinks


def _announce(recipe: Recipe, plan: BatchPlan, timetable: Timetable, step: int, directory: RunDirectory) -> None:
    share = f"{plan.ranks} x {plan.batch_size // plan.ranks}"
    begins = f"goes on at step {step}" if step else "begins"
    lines = [
        f"{directory.path}: {begins}; {plan.pictures} pictures, {timetable.steps_per_epoch} steps an epoch, {timetable.total} "
        f"steps, batch {plan.batch_size} ({share}), peak learning rate {recipe.peak_lr:.2e}"
    ]
    if recipe.augmentation.place == "workers" and recipe.crops.global_size >= 200:
        ceiling = _ONE_CORE * max(recipe.run.workers, 1) * plan.ranks
        lines.append(
            f"{recipe.run.workers} workers for each of {plan.ranks} ranks prepare about {ceiling} pictures a second; when the "
            f"log says that training waits for data, say --set augmentation.place=device"
        )
    print("\n".join(lines), file=sys.stderr, flush=True)
