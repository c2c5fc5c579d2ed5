"""`diffusionlens measure`: parse, call one function, print."""

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
    Models,
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
from diffusionlens.options import EXPLORE


def measure(
    models: Models,
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]; KIND: voc, coco, imagenet, ...")],
    out: Annotated[
        Path, place("--out", "result directory to make; an earlier result is replaced when this one is whole")
    ],
    analyses: Analyses = "standard",
    layers: Layers = "all",
    images: Images = None,
    size: Size = None,
    fit: Fitting = "crop",
    batch_size: BatchSize = None,
    device: Device = "auto",
    workers: Workers = 0,
    seed: Seed = 0,
    explore: Annotated[
        int, whole(EXPLORE, "so many pictures in the page's token explorer, some 0.5 MB each and model (224 px)")
    ] = 0,
    setting: Setting = None,
    as_json: Json = False,
) -> None:
    """Measure models on pictures: one table, figures and a page."""
    with at_work() as progress:
        measured = api.measure(
            models,
            data,
            out,
            analyses=analyses,
            layers=layers,
            images=images,
            size=size,
            fit=fit,  # type: ignore[arg-type]
            batch_size=batch_size,
            device=device,
            workers=workers,
            seed=seed,
            explore=explore,
            options=setting or [],
            progress=progress,
        )
    if measured is not None:
        _print_measured(measured, as_json=as_json)


def _print_measured(measured: "api.Measured", *, as_json: bool) -> None:
    if as_json:
        models = [entry["label"] for entry in measured.measurement.manifest["models"]]
        found = [{"model": finding.model, "text": finding.text} for finding in measured.findings]
        rows = len(measured.measurement.results)
        say([json.dumps({"page": str(measured.page), "models": models, "rows": rows, "findings": found}, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else found.text for found in measured.findings]
    say(map(printable, [*lines, f"page: {measured.page}"]))
