"""The command: parse, call one function, print. Results go to standard output, everything else to standard error."""

import io
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from diffusionlens import api
from diffusionlens.bench.attention import STEPS, bench_attention, parse_clock, parse_numbers, parse_shapes
from diffusionlens.bench.measure import bench_measure
from diffusionlens.bench.train import bench_train
from diffusionlens.cli_check import check
from diffusionlens.cli_compare import compare
from diffusionlens.cli_parts import (
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
    say,
)
from diffusionlens.cli_probe import probe
from diffusionlens.cli_track import track
from diffusionlens.cli_train import train
from diffusionlens.demonstration import demo as run_demo
from diffusionlens.errors import InputError, OtherProcessError, printable
from diffusionlens.progress import complain

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would take [label=] for markup, and cut long defaults
    help="What happened to the patch tokens of a Vision Transformer? Weights and pictures in, one table, figures and a page "
    "out.",
)
bench = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Time the program on this machine; ratios, alternated in one run."
)
app.add_typer(bench, name="bench")
app.command()(check)
app.command()(train)
app.command()(track)
app.command()(compare)
app.command()(probe)


@app.command()
def measure(
    models: Models,
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]; KIND: voc, coco, imagenet, ...")],
    out: Annotated[
        Path, typer.Option(help="result directory to make; an earlier result is replaced when this one is whole")
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
            options=setting or [],
            progress=progress,
        )
    if measured is not None:
        _print_measured(measured, as_json=as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="directory to make, or of a demo to go on with")] = Path("reports/demo"),
    as_json: Json = False,
) -> None:
    """Train, measure and track two small models on built-in pictures. A few minutes on two cores, no download."""
    with at_work("say it again to go on") as progress:
        shown = run_demo(out, progress=progress)
    pages = {"page": shown.measured.page, "track": shown.tracked.page}
    if as_json:
        runs = {name: str(run) for name, run in shown.runs.items()}
        say([json.dumps({name: str(page) for name, page in pages.items()} | {"runs": runs}, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else found.text for found in shown.measured.findings]
    say(map(printable, [*lines, *(f"{name}: {page}" for name, page in pages.items())]))


@bench.command("measure")
def measure_bench(
    model: Annotated[str, typer.Option(help="MODEL")] = "timm:vit_small_patch16_224?pretrained=false",
    data: Annotated[str, typer.Option(help="DATA")] = "scenes:?n=300&size=224",
    images: Annotated[int, typer.Option(min=1, help="pictures per round")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="rounds; bare forward and measure alternate")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="pictures per forward")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default torch's own choice")] = None,
    parts: Annotated[bool, typer.Option(help="also each analysis alone")] = True,
    memory: Annotated[bool, typer.Option(help="also the peak memory at 100 and at 300 pictures")] = True,
    as_json: Json = False,
) -> None:
    """Time `measure` against the bare forward pass. All analyses over all layers, on the same decoded pictures."""
    found = bench_measure(model, data, images, rounds, batch_size, threads, parts=parts, memory=memory)
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])


@bench.command("attention")
def attention_bench(
    device: Device = "auto",
    shapes: Annotated[
        str, typer.Option(help="BxHxN (pictures, heads, tokens), separated by commas; 'none' for none")
    ] = ("32x6x197,256x6x37,4x6x1025,1x6x4097"),
    dtypes: Annotated[str, typer.Option(help="some of fp32,bf16,fp16")] = "fp32",
    stds: Annotated[str, typer.Option(help="standard deviations of the logits")] = "0.15,1,3",
    rounds: Annotated[int, typer.Option(help="rounds; softmax, the package and ours alternate")] = 7,
    clock: Annotated[str, typer.Option(help="wall, or cpu (processor time: for a machine that is not idle)")] = "wall",
    threads: Annotated[int | None, typer.Option(help="CPU threads; default torch's own choice")] = None,
    package: Annotated[bool, typer.Option(help="also the entmax package (slow)")] = True,
    steps: Annotated[bool, typer.Option(help="also a training step of ViT-S/16 at 224 and 96 pixels")] = True,
    as_json: Json = False,
) -> None:
    """Time entmax attention against softmax attention."""
    with at_work() as progress:
        found = bench_attention(
            device,
            parse_shapes(shapes),
            dtypes.split(","),
            parse_numbers(stds, "--stds"),
            rounds,
            parse_clock(clock),
            threads,
            progress,
            package=package,
            steps=STEPS if steps else (),
        )
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])


@bench.command("train")
def train_bench(
    recipe: Annotated[
        str, typer.Option(help="a YAML file, or the name of a shipped recipe; its attention is exchanged")
    ] = "tiny_scenes_softmax",
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]")] = "scenes:?n=512&size=64",
    setting: Annotated[list[str] | None, typer.Option("--set", help="key of the recipe, as batch_size=64")] = None,
    rounds: Annotated[int, typer.Option(help="rounds; softmax and entmax alternate")] = 7,
    steps: Annotated[int, typer.Option(help="steps of each in a round")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default torch's own choice")] = None,
    as_json: Json = False,
) -> None:
    """Time whole training steps with softmax and with entmax. Pictures a second, the ratio, and the share of time that
    training waits for pictures."""
    with at_work() as progress:
        found = bench_train(recipe, data, setting or [], rounds, steps, threads, progress)
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])


def _print_measured(measured: api.Measured, *, as_json: bool) -> None:
    if as_json:
        models = [entry["label"] for entry in measured.measurement.manifest["models"]]
        found = [{"model": finding.model, "text": finding.text} for finding in measured.findings]
        rows = len(measured.measurement.results)
        say([json.dumps({"page": str(measured.page), "models": models, "rows": rows, "findings": found}, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else found.text for found in measured.findings]
    say(map(printable, [*lines, f"page: {measured.page}"]))


def main() -> None:
    """Runs the command; exit status 0 done, 2 the request or an input is wrong, 1 a fault of the program."""
    logging.getLogger("timm").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without some letter gets an escape, not a traceback
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleared away
    try:
        app()
    except InputError as error:
        complain(f"error: {error}")
        sys.exit(2)
    except OtherProcessError as error:
        complain(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted; nothing was written")
        sys.exit(130)
