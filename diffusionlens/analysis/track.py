"""The diagnostics over the checkpoints of training runs: what prolonged training does to patch tokens."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.diagnostic import evenly_spaced
from diffusionlens.analysis.measure import Progress, measure, parse_layers
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.run import Measurement, Settings
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError
from diffusionlens.models import load_model
from diffusionlens.models.run_directory import is_run, list_weights
from diffusionlens.per_image import PerImage
from diffusionlens.spec import expand_path, parse_spec


@dataclass(frozen=True)
class Moment:
    """The teacher of a run at one checkpoint: `run` is the run's label, `epoch` fractional inside one."""

    run: str
    name: str
    epoch: float
    step: int
    path: Path

    @property
    def label(self) -> str:
        """What stands in the column `model`."""
        return f"{self.run}@{self.name}"


LeftOutMoment = dict[str, str]
"""A checkpoint that can't be opened, as a manifest's `left_out` names it: model, what, reason."""


@dataclass
class Track:
    """`measurement` holds every checkpoint as a model, without material for figures; `moments` are in its order."""

    measurement: Measurement
    moments: list[Moment]

    def results(self) -> pd.DataFrame:
        """The tidy table with the columns `run`, `epoch` and `step`."""
        return with_moments(self.measurement.results, self.moments)


def with_moments(results: pd.DataFrame, moments: Sequence[Moment]) -> pd.DataFrame:
    """`results`, whose models are `moments`, with the columns `run`, `epoch` and `step`."""
    facts = pd.DataFrame(
        [(moment.label, moment.run, moment.epoch, moment.step) for moment in moments],
        columns=["model", "run", "epoch", "step"],
    )
    return results.merge(facts, on="model", how="left", validate="many_to_one")


def find_moments(runs: Sequence[str], count: int | None = None) -> list[Moment]:
    """The checkpoints of runs given as `[label=]RUN`, in the order of training.

    Args:
        count: at most so many of each run, evenly spaced; the first and the last are among them.

    Raises:
        InputError: not a run, a run without checkpoints, or two of one name.
    """
    if not runs:
        raise InputError("no run was given; wanted one or more RUN")
    if count is not None and count < 1:
        raise InputError(f"--checkpoints {count}; wanted a whole number from 1")
    moments: list[Moment] = []
    for text in runs:
        spec = parse_spec(text, "RUN", "[label=]RUN, a folder that `diffusionlens train` made")
        path = expand_path(spec.rest)
        if not is_run(path):
            state = "is not a training run" if path.exists() else "does not exist"
            raise InputError(f"{path} {state}; wanted a folder that `diffusionlens train` made")
        label = spec.label or path.resolve().name
        if any(moment.run == label for moment in moments):
            raise InputError(f"two runs are called '{label}'; tell them apart as a=RUN b=RUN")
        known = list_weights(path)
        if not known:
            raise InputError(f"{path} holds no numbered checkpoint yet; its training has not written its first")
        chosen = _spread(len(known), count)
        moments += [Moment(label, known[n].name, known[n].epoch, known[n].step, known[n].path) for n in chosen]
    return moments


def _spread(available: int, count: int | None) -> list[int]:
    """Evenly spaced places with both ends; the last alone for one."""
    if count is None or count >= available:
        return list(range(available))
    if count == 1:
        return [available - 1]
    return sorted({0, available - 1, *evenly_spaced(range(1, available - 1), count - 2)})


def set_aside(moments: Sequence[Moment], layers: str = "all") -> tuple[list[Moment], list[LeftOutMoment]]:
    """The checkpoints that can be opened, and those that can't, with the reason: one damaged file must not cost the curve, nor
    come to light after hours.

    Raises:
        InputError: none of a run's can be opened, or one has not the `layers` that are asked for.
    """
    whole: list[Moment] = []
    broken: list[LeftOutMoment] = []
    for moment in moments:
        try:
            depth = load_model(str(moment.path)).depth
        except InputError as error:
            broken.append({"model": moment.label, "what": "the whole checkpoint", "reason": str(error)})
            continue
        parse_layers(layers, depth, moment.label)
        whole.append(moment)
    for run in dict.fromkeys(moment.run for moment in moments):
        if not any(moment.run == run for moment in whole):
            reason = next(entry["reason"] for entry in broken if entry["model"].startswith(f"{run}@"))
            raise InputError(f"none of the checkpoints of {run} can be opened; the first: {reason}")
    return whole, broken


def track(
    moments: Sequence[Moment],
    source: PictureSource,
    settings: Settings,
    progress: Progress = lambda *_: None,
    processes: Processes | None = None,
    broken: Sequence[LeftOutMoment] = (),
) -> Track | None:
    """Measures every checkpoint on the pictures of `source`, one after the other, so that memory holds one. `broken` ones are
    named among what was left out.

    Returns:
        None in processes other than the first.

    Raises:
        InputError: a checkpoint, the pictures or a setting can't be used.
    """
    started = time.monotonic()
    parts: list[Measurement] = []
    for place, moment in enumerate(moments):
        progress("checkpoints", place, len(moments))
        backbone = load_model(str(moment.path))
        backbone.label = moment.label
        part = measure([backbone], source, settings, progress, processes)
        if part is not None:
            parts.append(part)
    progress("checkpoints", len(moments), len(moments))
    if not parts:
        return None
    joined = join(parts, moments)
    joined.measurement.manifest["left_out"] += broken
    joined.measurement.manifest["wall_seconds"] = round(time.monotonic() - started, 2)
    return joined


def join(parts: Sequence[Measurement], moments: Sequence[Moment]) -> Track:
    """Measurements of checkpoints on the same pictures with the same settings, as one; material is let go."""
    manifest: dict[str, Any] = dict(parts[-1].manifest)
    for name in ("models", "left_out"):
        manifest[name] = [entry for part in parts for entry in part.manifest[name]]
    manifest["checkpoints"] = [
        {"model": moment.label, "run": moment.run, "name": moment.name, "epoch": moment.epoch, "step": moment.step}
        for moment in moments
    ]
    results = pd.concat([part.results for part in parts], ignore_index=True)
    pictures = PerImage.joined([part.pictures for part in parts])
    return Track(Measurement(results, pictures, [], manifest), list(moments))
