"""`diffusionlens probe`: parse, call one function, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.cli.parts import BatchSize, Device, Json, Layers, Models, Size, Workers, at_work, place, say, whole
from diffusionlens.errors import printable
from diffusionlens.options import SEED, SEEDS


def probe(
    task: Annotated[str, typer.Argument(metavar="TASK", help="segmentation, depth or classification")],
    models: Models,
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]: what the heads are scored on")],
    out: Annotated[Path, place("--out", "result directory to make")],
    train: Annotated[str | None, typer.Option(help="DATA that the heads learn from")] = None,
    tokens: Annotated[
        str, typer.Option(help="all, or some of patch,cls,cls+patch,shuffled_cls+patch,mean+patch")
    ] = "all",
    layers: Layers = "all",
    seeds: Annotated[int | None, whole(SEEDS, "trainings of every head, for the interval of a gain; default 3")] = None,
    preset: Annotated[
        str, typer.Option(help="fast (tokens are cached); dinov2, dino (as published; for a GPU)")
    ] = "fast",
    cache: Annotated[Path | None, place("--cache", "directory that keeps the tokens for later runs")] = None,
    save_heads: Annotated[bool, typer.Option("--save-heads", help="keep the heads in OUT/heads")] = False,
    heads: Annotated[Path | None, place("--heads", "such a file, to score without training")] = None,
    size: Size = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    workers: Workers = 0,
    seed: Annotated[int, whole(SEED, "of the first training, of splits and of bootstrap intervals")] = 0,
    setting: Annotated[list[str] | None, typer.Option("--set", help="of the preset, as iterations=500")] = None,
    as_json: Json = False,
) -> None:
    """Train linear heads on frozen tokens, layer by layer. What patches, CLS, and both together know of the pixels or the
    picture, and whether CLS adds more than width does."""
    with at_work() as progress:
        probed = api.probe(
            task,
            models,
            data,
            train,
            out,
            tokens=tokens,
            layers=layers,
            seeds=seeds,
            preset=preset,
            cache=cache,
            save_heads=save_heads,
            heads=heads,
            size=size,
            batch_size=batch_size,
            device=device,
            workers=workers,
            seed=seed,
            options=setting or [],
            progress=progress,
        )
    if probed is None:
        return
    manifest = probed.measurement.manifest
    forwards, seconds = manifest["backbone_forwards"], manifest["wall_seconds"]
    if as_json:
        found = [{"model": finding.model, "text": finding.text} for finding in probed.findings]
        rows = len(probed.measurement.results)
        plain = {"page": str(probed.page), "rows": rows, "backbone_forwards": forwards, "wall_seconds": seconds}
        say([json.dumps(plain | {"findings": found}, indent=2)])
        return
    lines = [f"{finding.model}: {finding.text}" if finding.model else finding.text for finding in probed.findings]
    what = "pictures" if preset == "fast" else "pictures, crops or views"
    lines.append(f"{forwards} {what} through a model, {seconds:.0f} s in all")
    say(map(printable, [*lines, f"page: {probed.page}"]))
