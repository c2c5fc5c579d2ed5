"""What the commands do, as Python functions of the same names and options."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from diffusionlens.analysis.measure import Progress, chosen_pictures, refuse_doubles
from diffusionlens.analysis.measure import measure as measure_backbones
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.analysis.run import Measurement, Settings
from diffusionlens.analysis.track import Track, find_moments
from diffusionlens.analysis.track import track as track_moments
from diffusionlens.data import PictureSource, UnreadablePicture, open_data
from diffusionlens.data.sample import IGNORE
from diffusionlens.data.transform import Fit
from diffusionlens.errors import InputError
from diffusionlens.models import Backbone, load_model
from diffusionlens.models.own_models import list_moments
from diffusionlens.report.bundle import write_bundle
from diffusionlens.report.diagnosis import Diagnosis
from diffusionlens.report.directory import check_target
from diffusionlens.report.findings import Finding, findings
from diffusionlens.report.track import track_findings, write_track
from diffusionlens.spec import parse_size
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.train import Trained
from diffusionlens.training.train import train as run_training

TRACKED = "pib,norms,sparsity,similarity"
"""The analyses whose numbers make curves over training."""

_MOST_WORKERS = 1024  # each is a process; beyond this a machine runs out of those, and of open files


def _silent(what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Measured:
    """A measurement and, when it was written, its page."""

    measurement: Measurement
    page: Path | None

    @property
    def findings(self) -> list[Finding]:
        """The sentences of the page."""
        models = self.measurement.manifest["models"]
        labels = [model["label"] for model in models]
        return findings(self.measurement.results, labels, [model["label"] for model in models if model["untrained"]])


@dataclass(frozen=True)
class Tracked:
    """A track over checkpoints, and its page."""

    track: Track
    page: Path

    @property
    def findings(self) -> list[Finding]:
        """The sentences of the page."""
        runs = list(dict.fromkeys(moment.run for moment in self.track.moments))
        return track_findings(self.track.results(), runs)


def measure(
    models: str | Backbone | Sequence[str | Backbone],
    data: str | PictureSource,
    out: Path | str | None = None,
    *,
    analyses: str = "standard",
    layers: str = "all",
    images: int | None = None,
    size: str | None = None,
    fit: Fit = "crop",
    batch_size: int | None = None,
    device: str = "auto",
    workers: int = 0,
    seed: int = 0,
    options: Sequence[str] = (),
    progress: Progress = _silent,
) -> Measured | None:
    """Measures one or several models on pictures, and writes a result directory when `out` is given.

    Args:
        models: MODEL strings, or Backbones from `load_model`.
        data: a DATA string, or a picture source from `open_data`.
        out: directory to make.
        analyses: "standard" (pib, norms, sparsity, similarity, pca), "all", or names separated by commas; diffusion sends
            changed pictures through the model too and costs a multiple.
        layers: "all", "last", or numbers separated by commas; 0 is the embedding, -1 the last.
        images: at most so many pictures, evenly spaced over the data set.
        size: "224" or "224x320"; default 224, or the native size of a smaller model.
        options: settings of analyses, as "pib.hit=center".

    Returns:
        The measurement; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    try:
        with processes.together():
            place = check_target(out) if out is not None and processes.rank == 0 else None
            given = [models] if isinstance(models, str | Backbone) else list(models)
            settings = _settings(
                analyses, layers, images, size, fit, batch_size, device, workers, seed, options=options
            )
            source = open_data(data) if isinstance(data, str) else data
            backbones = [load_model(model) if isinstance(model, str) else model for model in given]
        measurement = measure_backbones(backbones, source, settings, progress, processes)
        with processes.together():
            if measurement is None:
                return None
            measurement.manifest["command"] = _command()
            return Measured(measurement, None if place is None else write_bundle(measurement, place))
    finally:
        processes.leave()


def track(
    runs: str | Sequence[str],
    data: str | PictureSource,
    out: Path | str,
    *,
    checkpoints: int | None = None,
    analyses: str = TRACKED,
    layers: str = "all",
    images: int | None = None,
    size: str | None = None,
    fit: Fit = "crop",
    batch_size: int | None = None,
    device: str = "auto",
    workers: int = 0,
    seed: int = 0,
    options: Sequence[str] = (),
    progress: Progress = _silent,
) -> Tracked | None:
    """Measures the checkpoints of training runs, and writes curves over training as a result directory.

    Args:
        runs: run directories of `train`, as `[label=]RUN`.
        checkpoints: at most so many of each run, evenly spaced.
        analyses, layers, ...: as of `measure`.

    Returns:
        The track; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    try:
        with processes.together():
            place = check_target(out) if processes.rank == 0 else None
            moments = find_moments([runs] if isinstance(runs, str) else list(runs), checkpoints)
            settings = _settings(
                analyses, layers, images, size, fit, batch_size, device, workers, seed, options=options
            )
            source = open_data(data) if isinstance(data, str) else data
        tracked = track_moments(moments, source, settings, progress, processes)
        with processes.together():
            if tracked is None or place is None:
                return None
            tracked.measurement.manifest["command"] = _command()
            return Tracked(tracked, write_track(tracked, place))
    finally:
        processes.leave()


def train(
    recipe: str | Path | Recipe,
    data: str | PictureSource | Sequence[str | PictureSource],
    out: Path | str,
    *,
    overlays: Sequence[str | Path] = (),
    settings: Sequence[str] = (),
    resume: bool = False,
    diagnose: str | PictureSource | None = None,
    diagnose_images: int | None = 256,
    diagnose_analyses: str = TRACKED,
) -> Trained | None:
    """Trains, and leaves a run directory (docs/training.md says what is in it).

    Args:
        recipe: a YAML file, the name of a shipped recipe, or a Recipe.
        data: a DATA string or a picture source, or several of them; labels and boxes are not looked at.
        out: the run directory to make, or with `resume` the one to go on with.
        overlays: recipes laid over the first.
        settings: "optimizer.lr=1e-3" and the like.
        resume: goes on with the same run from its last checkpoint; only `run.*` and `checkpoint.*` may differ.
        diagnose: held-out DATA on which every numbered checkpoint is measured; RUN/diagnostics is then what `track` makes.
        diagnose_images: at most so many pictures of it, evenly spaced.
        diagnose_analyses: as `analyses` of `measure`.

    Returns:
        How it ended; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    hook = None
    if diagnose is not None:
        held_out = open_data(diagnose) if isinstance(diagnose, str) else diagnose
        chosen = _settings(diagnose_analyses, "all", diagnose_images, None, "crop", None, "auto", 0, 0)
        hook = Diagnosis(held_out, chosen, lambda line: print(line, file=sys.stderr, flush=True))
    return run_training(recipe, data, out, overlays=overlays, settings=settings, resume=resume, after_save=hook)


def _settings(
    analyses: str,
    layers: str,
    images: int | None,
    size: str | None,
    fit: str,
    batch_size: int | None,
    device: str,
    workers: int,
    seed: int,
    options: Sequence[str] = (),
) -> Settings:
    _check_numbers(images=images, batch_size=batch_size, workers=workers, seed=seed)
    return Settings(
        analyses=tuple(parse_analyses(analyses)),
        options=parse_options(options),
        layers=layers,
        images=images,
        size=None if size is None else parse_size(size),
        fit=_fit(fit),
        batch_size=batch_size,
        device=device,
        workers=workers,
        seed=seed,
    )


def _command() -> str:
    return " ".join(sys.argv) if sys.argv and sys.argv[0].endswith("diffusionlens") else ""


def _fit(text: str) -> Fit:
    if text not in ("crop", "squash", "pad"):
        raise InputError(f"--fit {text}; wanted crop, squash or pad")
    return text  # type: ignore[return-value]


def _check_numbers(images: int | None, batch_size: int | None, workers: int, seed: int) -> None:
    for name, number, low, high in (
        ("--images", images, 1, sys.maxsize),
        ("--batch-size", batch_size, 1, sys.maxsize),
        ("--workers", workers, 0, _MOST_WORKERS),
        ("--seed", seed, 0, 2**32 - 1),  # scikit-learn takes no more
    ):
        if number is not None and not low <= number <= high:
            upper = "" if high == sys.maxsize else f" to {high}"
            raise InputError(f"{name} {number}; wanted a whole number from {low}{upper}")


def check(
    models: Sequence[str],
    data: str | None = None,
    *,
    size: str | None = None,
    images: int | None = None,
    progress: Progress = _silent,
) -> dict[str, Any]:
    """What would be used: every model's layers, token layout, preprocessing and dropped keys; of the data, the counts of
    pictures and annotations and what can't be read (every picture is opened, or `images` of them).

    Returns:
        {"models": [...], "data": {...} or None}, plain values.
    """
    _check_numbers(images=images, batch_size=None, workers=0, seed=0)
    described = []
    for model in models:
        backbone = load_model(model)
        backbone.set_size(backbone.default_size() if size is None else parse_size(size))
        described.append({"label": backbone.label, **backbone.describe(), "checkpoints": list_moments(model)})
    if described or data is None:
        refuse_doubles([entry["label"] for entry in described])
    return {"models": described, "data": None if data is None else _check_data(open_data(data), images, progress)}


def _check_data(source: PictureSource, images: int | None, progress: Progress) -> dict[str, Any]:
    unreadable = [{"file": file, "reason": reason} for file, reason in source.skipped]
    notes: list[dict[str, str]] = []
    counts = {"boxes": 0, "crowds": 0, "difficult": 0, "masks": 0, "depth": 0, "labelled": 0, "without_objects": 0}
    annotated = {"mask": [0, 0], "depth": [0, 0]}
    depths: list[float] = []
    opened, sizes = 0, set()
    indices = chosen_pictures(len(source), images)
    for done, index in enumerate(indices, start=1):
        try:
            picture = source.open(index)
        except UnreadablePicture as error:
            unreadable.append({"file": error.file, "reason": error.reason})
            continue
        finally:
            progress(source.label, done, len(indices))
        opened += 1
        counts["boxes"] += len(picture.boxes)
        counts["crowds"] += int(picture.crowd.sum())
        counts["difficult"] += int(picture.difficult.sum())
        counts["masks"] += picture.mask is not None
        counts["depth"] += picture.depth is not None
        counts["labelled"] += picture.label is not None
        counts["without_objects"] += len(picture.boxes) == 0
        if picture.mask is not None:
            _add_up(annotated["mask"], picture.mask != IGNORE)
        if picture.depth is not None:
            read = picture.depth.isfinite()
            _add_up(annotated["depth"], read)
            depths += [bound.item() for bound in picture.depth[read].aminmax()] if read.any() else []
        sizes.add(picture.image.size)
        notes += [{"file": picture.name, "reason": note} for note in picture.notes]
    return {
        "label": source.label,
        "spec": source.spec,
        "pictures": len(source),
        "opened": opened,
        "provides": sorted(source.provides),
        "classes": len(source.classes),
        "mask_classes": len(source.mask_classes),
        **counts,
        "mask_share": _share(annotated["mask"]),
        "depth_share": _share(annotated["depth"]),
        "depth_range": [min(depths), max(depths)] if depths else None,
        "smallest": list(min(sizes)) if sizes else None,
        "largest": list(max(sizes)) if sizes else None,
        "unreadable": unreadable,
        "notes": notes,
    }


def _add_up(sums: list[int], usable: Tensor) -> None:
    sums[0] += int(usable.sum())
    sums[1] += usable.numel()


def _share(sums: list[int]) -> float | None:
    """Share of the pixels that can be used: of a class, or with a reading."""
    return sums[0] / sums[1] if sums[1] else None
