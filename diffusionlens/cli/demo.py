"""`diffusionlens demo`: call one function, print."""

import json
from pathlib import Path
from typing import Annotated

from diffusionlens import api
from diffusionlens.cli.parts import Json, at_work, place, say
from diffusionlens.errors import printable


def demo(
    out: Annotated[Path, place("--out", "directory to make, or of a demo to go on with")] = Path("diffusionlens-demo"),
    as_json: Json = False,
) -> None:
    """Train, measure and track two small models on built-in pictures. A few minutes on two cores, no download."""
    with at_work("say it again to go on") as progress:
        shown = api.demo(out, progress=progress)
    pages = {"page": shown.measured.page, "track": shown.tracked.page}
    if as_json:
        runs = {name: str(run) for name, run in shown.runs.items()}
        say([json.dumps({name: str(page) for name, page in pages.items()} | {"runs": runs}, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else found.text for found in shown.measured.findings]
    say(map(printable, [*lines, *(f"{name}: {page}" for name, page in pages.items())]))
