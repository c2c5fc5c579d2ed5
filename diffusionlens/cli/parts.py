"""What the commands share: options of one meaning, progress around work, and results on standard output."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionlens.errors import InputError
from diffusionlens.options import BATCH_SIZE, IMAGES, SEED, WORKERS, Whole
from diffusionlens.progress import ProgressReport, complain


def whole(kind: Whole, help: str) -> Any:
    """An option whose number is refused in the words of the functions, whatever was typed for it."""

    def integer(text: str) -> int:  # its name stands in --help
        return kind.parse(text)

    return typer.Option(kind.option, parser=integer, help=help)


def place(option: str, help: str) -> Any:
    """An option that takes a path. An empty one is refused here: made a Path of, it would be the directory one is in."""

    def path(text: str) -> Path:  # its name stands in --help
        if not str(text).strip():
            raise InputError(f"{option} is empty; wanted a path")
        return Path(text)

    return typer.Option(option, parser=path, help=help)


MODEL_HELP = "[label=]timm:NAME, shipped:NAME, a weights file, or RUN[@epoch=N] of `train`"
Models = Annotated[list[str], typer.Argument(metavar="MODEL", help=MODEL_HELP)]
Analyses = Annotated[
    str, typer.Option(help="standard (pib,norms,sparsity,similarity,pca), all, or some of these, diffusion, discovery")
]
Layers = Annotated[str, typer.Option(help="all, last, or numbers like 0,6,12 (0 = embedding, -1 = last)")]
Fitting = Annotated[str, typer.Option(help="crop (centre), squash (whole picture) or pad")]
BatchSize = Annotated[int | None, whole(BATCH_SIZE, "pictures per forward; default 8 on a CPU, 64 on a GPU")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Workers = Annotated[int, whole(WORKERS, "processes that read pictures")]
Seed = Annotated[int, whole(SEED, "of bootstrap intervals and token samples")]
Setting = Annotated[list[str] | None, typer.Option("--set", help="option of an analysis, as pib.hit=center")]
Size = Annotated[str | None, typer.Option(help="picture size, N or HxW; default 224, or a smaller model's own")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
Images = Annotated[int | None, whole(IMAGES, "at most so many pictures, evenly spaced")]


@contextmanager
def at_work(interrupted: str = "nothing was written") -> Iterator[ProgressReport]:
    """Shows progress; an interrupted command ends with one line, which says what is left of its work."""
    try:
        with ProgressReport() as progress:
            yield progress
    except KeyboardInterrupt:
        complain(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None


def say(lines: Iterable[str]) -> None:
    """Prints results. That nobody reads on (`| head`) is no error; that they can't be written is one."""
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in the buffer goes there
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"the result can't be printed ({error.strerror}); send it somewhere else") from None
