"""`diffusionlens track`: parse, call one function, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.cli.parts import (
    Analyses,
    BatchSize,
    Device,
    Fitting,
    Images,
    Json,
    Layers,
    Seed,
    Setting,
    Size,
    Workers,
    at_work,
    place,
    say,
    whole,
)
from diffusionlens.errors import printable
from diffusionlens.options import CHECKPOINTS, TRACKED
from diffusionlens.progress import complain


def track(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="[label=]run directory of `train`")],
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]; KIND: voc, coco, imagenet, ...")],
    out: Annotated[Path, place("--out", "result directory to make")],
    checkpoints: Annotated[int | None, whole(CHECKPOINTS, "at most so many of each run, evenly spaced")] = None,
    analyses: Analyses = TRACKED,
    layers: Layers = "all",
    images: Images = None,
    size: Size = None,
    fit: Fitting = "crop",
    batch_size: BatchSize = None,
    device: Device = "auto",
    workers: Workers = 0,
    seed: Seed = 0,
    setting: Setting = None,
    as_json: Json = False,
) -> None:
    """Measure every checkpoint of training runs. Curves over the epochs, side by side: dense degradation is a thing of
    prolonged training, and this is where it shows."""
    with at_work() as progress:
        tracked = api.track(
            runs,
            data,
            out,
            checkpoints=checkpoints,
            analyses=analyses,
            layers=layers,
            images=images,
            size=size,
            fit=fit,  # type: ignore[arg-type]
            batch_size=batch_size,
            device=device,
            workers=workers,
            seed=seed,
            options=setting or [],
            progress=progress,
            warn=complain,
        )
    if tracked is None:
        return
    if as_json:
        found = [{"run": finding.model, "text": finding.text} for finding in tracked.findings]
        models = [moment.label for moment in tracked.track.moments]
        rows = len(tracked.track.measurement.results)
        left_out = tracked.track.measurement.manifest["left_out"]
        facts = {"page": str(tracked.page), "models": models, "rows": rows, "findings": found, "left_out": left_out}
        say([json.dumps(facts, indent=2)])
        return
    lines = [f"{finding.model}: {finding.text}" for finding in tracked.findings]
    say(map(printable, [*lines, f"page: {tracked.page}"]))
