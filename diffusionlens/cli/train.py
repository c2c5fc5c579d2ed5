"""`diffusionlens train`: parse, call one function, print."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.cli.parts import Json, place, say, whole
from diffusionlens.options import DIAGNOSE_IMAGES, TRACKED


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a YAML file, or the name of a shipped recipe")],
    data: Annotated[
        list[str], typer.Option(help="[label=]KIND:ROOT[?key=value]; may be repeated; annotations are not used")
    ],
    out: Annotated[Path, place("--out", "run directory to make, or to go on with")],
    overlay: Annotated[
        list[str] | None, typer.Option(help="recipe to lay over it, as boosted; may be repeated")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key of the recipe, as optimizer.lr=1e-3")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the same run from its last checkpoint")] = False,
    diagnose: Annotated[
        str | None, typer.Option(help="held-out DATA; every numbered checkpoint is measured, into RUN/diagnostics")
    ] = None,
    diagnose_images: Annotated[int, whole(DIAGNOSE_IMAGES, "at most so many pictures of it, evenly spaced")] = 256,
    diagnose_analyses: Annotated[str, typer.Option(help="as --analyses of measure")] = TRACKED,
    as_json: Json = False,
) -> None:
    """Train a ViT as DINO does, with softmax or entmax attention. Several processes: torchrun."""
    done = api.train(
        recipe,
        data,
        out,
        overlays=overlay or [],
        settings=setting or [],
        resume=resume,
        diagnose=diagnose,
        diagnose_images=diagnose_images,
        diagnose_analyses=diagnose_analyses,
    )
    if done is None:  # not the first of several processes
        return
    if as_json:
        say([json.dumps(asdict(done) | {"run": str(done.run)}, indent=2)])
    elif done.status == "stopped":
        say([f"stopped at step {done.step} of {done.total}, nothing lost; go on with --resume: {done.run}"])
    else:
        say([f"run: {done.run}"])
