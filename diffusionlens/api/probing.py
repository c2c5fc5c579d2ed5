"""`probe`: heads trained on frozen tokens, to a result directory."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.heads.kinds import parse_kinds
from diffusionlens.analysis.probes.heads.saved import save_heads as write_heads
from diffusionlens.analysis.probes.probe import ProbeOutcome
from diffusionlens.analysis.probes.probe import probe as probe_backbones
from diffusionlens.analysis.probes.run import ProbeSettings
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.processes import Processes
from diffusionlens.api.measuring import Measured
from diffusionlens.api.requests import check_numbers, silent
from diffusionlens.data import PictureSource, open_data
from diffusionlens.errors import InputError, in_short
from diffusionlens.invocation import command_line
from diffusionlens.models import Backbone, prepare_models
from diffusionlens.options import SEEDS
from diffusionlens.pages.bundle import write_bundle
from diffusionlens.pages.directory import check_target
from diffusionlens.spec import given_path, parse_size

_SEEDS = 3


def probe(
    task: str,
    models: str | Backbone | Sequence[str | Backbone],
    data: str | PictureSource,
    train: str | PictureSource | None = None,
    out: Path | str | None = None,
    *,
    tokens: str = "all",
    layers: str = "all",
    seeds: int | None = None,
    preset: str = "fast",
    cache: Path | str | None = None,
    save_heads: bool = False,
    heads: Path | str | None = None,
    size: str | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    workers: int = 0,
    seed: int = 0,
    options: Sequence[str] = (),
    progress: Progress = silent,
) -> Measured | None:
    """Trains linear heads on the frozen tokens of every layer and scores them; see docs/probing.md.

    Args:
        task: "segmentation", "depth" or "classification".
        models: MODEL strings, or Backbones from `load_model`.
        data: what the heads are scored on. train: what they learn from, with the same classes.
        out: directory to make.
        tokens: "all", or token kinds separated by commas (patch, cls, cls+patch, shuffled_cls+patch, mean+patch).
        layers: "all", "last", or numbers separated by commas; 0 is the embedding, -1 the last.
        seeds: how many trainings of every head, by default 3; gains get their interval from them.
        cache: directory in which the tokens stay for later runs; without it they are kept beside `out` and removed.
        save_heads: also write heads/MODEL.safetensors into `out` (segmentation and depth).
        heads: such a file, to score without training, and so without `train` and `seeds`.
        options: settings of the preset, as "iterations=500".

    Returns:
        The measurement; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    try:
        with processes.together():
            place = check_target(out) if out is not None and processes.rank == 0 else None
            check_numbers(images=None, batch_size=batch_size, workers=workers, seed=seed)
            kept_in, heads_file = _path("--cache", cache), _path("--heads", heads)
            if kept_in is not None and place is not None:
                _check_apart(kept_in, place)
            if heads is not None and (seeds is not None or save_heads):
                asked = "--save-heads" if seeds is None else "--seeds"
                raise InputError(f"--heads is trained already, and {asked} would not be used; leave it out")
            if seeds is not None:
                SEEDS.check(seeds)
            settings = ProbeSettings(
                task=task,
                preset=preset,
                recipe=recipe_for(task, preset, options),
                kinds=parse_kinds(tokens),
                layers=layers,
                seeds=_SEEDS if seeds is None else seeds,
                size=None if size is None else parse_size(size),
                batch_size=batch_size,
                device=device,
                workers=workers,
                seed=seed,
                cache=kept_in,
                heads=heads_file,
                given=frozenset(option.partition("=")[0].strip() for option in options),
                room=None if out is None else Path(out).expanduser().resolve(),
            )
            if save_heads and (task == "classification" or out is None):
                raise InputError("--save-heads is for segmentation and depth, and needs --out")
            opening = prepare_models([models] if isinstance(models, str | Backbone) else list(models))
            test_source = open_data(data, "--data") if isinstance(data, str) else data
            train_source = open_data(train, "--train") if isinstance(train, str) else train
            backbones = [open_model() for open_model in opening]
        outcome = probe_backbones(backbones, test_source, train_source, settings, progress, processes)
        with processes.together():
            if outcome is None:
                return None
            outcome.measurement.manifest["command"] = command_line()
            if place is None:
                return Measured(outcome.measurement, None)
            keep = partial(_write_heads, outcome) if save_heads else _nothing_more
            return Measured(outcome.measurement, write_bundle(outcome.measurement, place, keep))
    finally:
        processes.leave()


def _path(option: str, given: Path | str | None) -> Path | None:
    """Absolute, `~` and links followed.

    Raises:
        InputError: it is empty, or no system has such a path.
    """
    if given is None:
        return None
    try:
        place = given_path(option, given, "a file of heads" if option == "--heads" else "a directory to make").resolve()
        place.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{option} {given} is no path ({in_short(error)})") from None
    return place


def _check_apart(cache: Path, out: Path) -> None:
    """Refuses tokens inside the result, which a later one replaces as a whole."""
    if out == cache or out in cache.parents:
        raise InputError(
            f"--cache {cache} is in --out {out}, which is replaced as a whole; choose another directory for one"
        )


def _nothing_more(directory: Path) -> None: ...


def _write_heads(outcome: ProbeOutcome, directory: Path) -> None:
    (directory / "heads").mkdir()
    for run in outcome.runs:
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", run.backbone.label)
        write_heads(run.heads, run.head_facts, directory / "heads" / f"{name}.safetensors")
