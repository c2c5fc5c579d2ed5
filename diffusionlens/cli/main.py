"""The command: parse, call one function, print. Results go to standard output, everything else to standard error."""

import io
import logging
import signal
import sys
from typing import Annotated, Any

import typer

import diffusionlens
from diffusionlens.cli.bench import bench
from diffusionlens.cli.check import check
from diffusionlens.cli.command import Command
from diffusionlens.cli.compare import compare
from diffusionlens.cli.demo import demo
from diffusionlens.cli.measure import measure
from diffusionlens.cli.probe import probe
from diffusionlens.cli.report import report
from diffusionlens.cli.track import track
from diffusionlens.cli.train import train
from diffusionlens.errors import InputError, OtherProcessError
from diffusionlens.progress import complain

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would take [label=] for markup, and cut long defaults
    help="What happened to the patch tokens of a Vision Transformer? Weights and pictures in, one table, figures and a page "
    "out.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"diffusionlens {diffusionlens.__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(bench, name="bench")
for command in (check, measure, probe, compare, track, report, train, demo):
    app.command(cls=Command)(command)

# click's UsageError, which typer takes from click or has under its own roof, depending on its version.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main() -> None:
    """Runs the command; exit status 0 done, 2 the request or an input is wrong, 1 a fault of the program."""
    for talkative in (
        "timm",
        "huggingface_hub",
    ):  # what goes wrong there comes back as an error, which is told in one line
        logging.getLogger(talkative).setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without some letter gets an escape, not a traceback
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleared away
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except _UsageError as error:
        sys.exit(_refuse(error))
    except InputError as error:
        complain(f"error: {error}")
        sys.exit(2)
    except OtherProcessError as error:
        complain(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        sys.exit(130)


def _refuse(error: Any) -> int:
    """An option that is missing, unknown or no number, in one line as every other refusal; without any option, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    message = " ".join(error.format_message().split()).rstrip(".")
    where = "diffusionlens" if error.ctx is None else error.ctx.command_path
    complain(f"error: {message[:1].lower()}{message[1:]}; `{where} --help` says what is possible")
    return 2
