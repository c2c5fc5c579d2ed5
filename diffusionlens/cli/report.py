"""`diffusionlens report`: parse, call one function, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.cli.parts import BatchSize, Device, Images, Json, Seed, Size, Workers, at_work, place, say
from diffusionlens.errors import printable
from diffusionlens.progress import complain


def report(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="a YAML file, or a shipped plan: paper, quick, training")],
    model: Annotated[list[str], typer.Option(help="MODEL, may be repeated; the first is the baseline")],
    out: Annotated[Path, place("--out", "result directory to make")],
    data: Annotated[
        list[str] | None, typer.Option(help="[ROLE=]DATA, may be repeated; without a role it goes wherever it fits")
    ] = None,
    train: Annotated[list[str] | None, typer.Option(help="[ROLE=]DATA that heads learn from, may be repeated")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="role or section of the plan to leave out, may be repeated")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="key of the plan or of a section, as pib.images=100")
    ] = None,
    images: Images = None,
    size: Size = None,
    seed: Seed = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="go on with what an interrupted run has left, or begin anew")
    ] = True,
    batch_size: BatchSize = None,
    device: Device = "auto",
    workers: Workers = 0,
    as_json: Json = False,
) -> None:
    """Make a whole report: figures, tables and one page as a plan says. What it needs is looked for first; interrupted, the
    same command goes on."""
    with at_work("finished sections are kept; say it again to go on") as progress:
        made = api.report(
            plan,
            model,
            data or [],
            out,
            train=train or [],
            without_parts=without or [],
            settings=setting or [],
            images=images,
            size=size,
            seed=seed,
            resume=resume,
            batch_size=batch_size,
            device=device,
            workers=workers,
            progress=progress,
            say=complain,
        )
    if made is None:
        return
    if as_json:
        found = [{"model": finding.model, "text": finding.text} for finding in made.findings]
        answer = {"page": str(made.page), "models": made.models, "seconds": made.seconds, "findings": found}
        say([json.dumps(answer, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else f"warning: {found.text}" for found in made.findings]
    say(map(printable, [*lines, f"page: {made.page}"]))
