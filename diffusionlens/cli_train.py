"""`diffusionlens train`: parse, call one function, print."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens.training.train import train as run_training


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a YAML file, or the name of a shipped recipe")],
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]; labels are not used")],
    out: Annotated[Path, typer.Option(help="run directory to make, or to go on with")],
    overlay: Annotated[
        list[str] | None, typer.Option(help="recipe to lay over it, as boosted; may be repeated")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key of the recipe, as optimizer.lr=1e-3")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the same run from its last checkpoint")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Train a ViT by self-distillation (DINO), with softmax or entmax attention. Several processes: torchrun."""
    done = run_training(recipe, data, out, overlays=overlay or [], settings=setting or [], resume=resume)
    if done is None:  # not the first of several processes
        return
    if as_json:
        print(json.dumps(asdict(done) | {"run": str(done.run)}, indent=2))
    elif done.status == "stopped":
        print(f"stopped at step {done.step} of {done.total}, nothing lost; go on with --resume: {done.run}")
    else:
        print(f"run: {done.run}")
