"""`diffusionlens compare`: parse, call one function, print."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.cli.parts import Json, Seed, at_work, place, say
from diffusionlens.errors import printable


def compare(
    directories: Annotated[
        list[str], typer.Argument(metavar="DIR", help="[label=]directory that measure, track or probe made")
    ],
    baseline: Annotated[str | None, typer.Option(help="model to compare with; default the first of all")] = None,
    model: Annotated[list[str] | None, typer.Option(help="only this model, and the baseline; may be repeated")] = None,
    out: Annotated[Path | None, place("--out", "result directory to make; default none, only print")] = None,
    seed: Seed = 0,
    allow_differences: Annotated[
        bool, typer.Option("--allow-differences", help="compare though data or options differ; the page says so")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare results picture by picture. Is B better than A, or were the pictures kind to it?"""
    with at_work():
        compared = api.compare(
            directories, out, baseline=baseline, models=model or [], seed=seed, allow_differences=allow_differences
        )
    if as_json:
        import pandas as pd  # here, as `--help` need not wait for it

        from diffusionlens.pages.comparison_findings import shown_differences

        shown = [
            {
                "model": row.model,
                "metric": f"{row.analysis}.{row.metric}",
                "token": row.token,
                "layer": None if pd.isna(row.layer) else int(row.layer),
                "difference": float(row.difference),
                "interval": None if pd.isna(row.low) else [float(row.low), float(row.high)],
                "n": None if pd.isna(row.n) else int(row.n),
            }
            for row in (one.row for one in shown_differences(compared.comparison.differences))
        ]
        found = [{"model": finding.model, "text": finding.text} for finding in compared.findings]
        page = None if compared.page is None else str(compared.page)
        names = compared.comparison.names
        answer = {"page": page, "baseline": names[0], "models": names[1:], "differences": shown, "findings": found}
        say([json.dumps(answer, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else f"warning: {found.text}" for found in compared.findings]
    say(map(printable, [*lines, *([] if compared.page is None else [f"page: {compared.page}"])]))
