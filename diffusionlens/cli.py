"""The command: parse, call one function, print. Results go to standard output, everything else to standard error."""

import io
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionlens import api
from diffusionlens.bench.attention import STEPS, bench_attention, parse_clock, parse_numbers, parse_shapes
from diffusionlens.bench.measure import bench_measure
from diffusionlens.cli_parts import (
    Analyses,
    BatchSize,
    Device,
    Fitting,
    Images,
    Json,
    Layers,
    Seed,
    Setting,
    Size,
    Workers,
    at_work,
    say,
)
from diffusionlens.cli_track import track
from diffusionlens.cli_train import train
from diffusionlens.errors import InputError, OtherProcessError
from diffusionlens.progress import complain, printable

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
app.command()(train)
app.command()(track)

Models = Annotated[list[str], typer.Argument(metavar="MODEL", help="[label=]timm:NAME or a weights file")]


@app.command()
def check(
    models: Models,
    data: Annotated[str | None, typer.Option(help="[label=]KIND:ROOT[?key=value]")] = None,
    size: Size = None,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Show what would be used, and measure nothing. Of models: layers, tokens, preprocessing, dropped keys. Of data:
    pictures, annotations, unreadable files; every picture is opened, or --images of them."""
    with at_work() as progress:
        found = api.check(models, data, size=size, images=images, progress=progress)
    if as_json:
        say([json.dumps(found, indent=2, default=str)])
        return
    lines = [line for model in found["models"] for line in _model_lines(model)]
    say(map(printable, lines + ([] if found["data"] is None else _data_lines(found["data"]))))


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
    out: Annotated[Path, typer.Option(help="result directory to make")] = Path("reports/demo"),
    as_json: Json = False,
) -> None:
    """Measure an untrained ViT-S/16 on built-in pictures. Everything there is to see, without a download."""
    with at_work() as progress:
        measured = api.demo(out, progress=progress)
    if measured is not None:
        _print_measured(measured, as_json=as_json)


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


def _print_measured(measured: api.Measured, *, as_json: bool) -> None:
    if as_json:
        models = [entry["label"] for entry in measured.measurement.manifest["models"]]
        found = [{"model": finding.model, "text": finding.text} for finding in measured.findings]
        rows = len(measured.measurement.results)
        say([json.dumps({"page": str(measured.page), "models": models, "rows": rows, "findings": found}, indent=2)])
        return
    lines = [f"{found.model}: {found.text}" if found.model else found.text for found in measured.findings]
    say(map(printable, [*lines, f"page: {measured.page}"]))


def _model_lines(model: dict[str, Any]) -> list[str]:
    tokens = (
        f"{model['grid'][0]} x {model['grid'][1]} patches of {model['patch_size'][0]} x {model['patch_size'][1]} px"
    )
    preparing = model["preprocessing"]
    lines = {
        "family": model["family"] + (f", {model['branch']}" if model["branch"] else ""),
        "architecture": f"{model['architecture']}, {model['parameters'] / 1e6:.2f} M parameters",
        "layers": f"0 (embedding) to {model['depth']}, width {model['width']}, {model['heads']} heads",
        "tokens": f"{'CLS, ' * model['cls']}{model['registers']} registers, {tokens}",
        "size": f"{model['size'][0]} x {model['size'][1]} px (native {model['native_size'][0]} x {model['native_size'][1]})",
        "positions": f"resized by the rule '{model['positions']}'",
        "pictures": f"mean {preparing['mean']}, std {preparing['std']}, {preparing['interpolation']}",
        "final norm": "yes" if model["final_norm"] else "none: normed = raw",
        "SHA-256": model["sha256"] or "not from a file",
    }
    shown = [*lines.items(), *(("note", note) for note in model["notes"])]
    shown += [("not loaded", f"{key} ({reason})") for key, reason in model["dropped"]]
    return [model["label"], *(f"  {name:<13} {value}" for name, value in shown)]


def _data_lines(data: dict[str, Any]) -> list[str]:
    opened = f"{data['pictures']} found, {data['opened']} opened, {len(data['unreadable'])} unreadable or missing"
    smallest, largest = (
        "none" if size is None else " x ".join(map(str, size)) for size in (data["smallest"], data["largest"])
    )
    counts = ", ".join(
        f"{data[key]} {key.replace('_', ' ')}" for key in ("boxes", "crowds", "difficult", "masks", "depth")
    )
    lines = {
        "pictures": opened,
        "sizes": f"{smallest} to {largest} px (width x height)",
        "annotations": counts,
        "labels": f"{data['labelled']} pictures labelled, {data['classes']} classes",
    }
    if "boxes" in data["provides"]:
        lines["no objects"] = f"{data['without_objects']} pictures"
    if data["masks"]:
        lines["masks"] = f"{data['mask_classes']} classes, {data['mask_share']:.1%} of the pixels are of one"
    if data["depth"]:
        lines["depth"] = f"{data['depth_share']:.1%} of the pixels have a reading"
        if data["depth_range"]:
            lines["depth"] += f", {data['depth_range'][0]:.3g} to {data['depth_range'][1]:.3g} m"
    shown = [*lines.items(), *(("skipped", f"{entry['file']}: {entry['reason']}") for entry in data["unreadable"])]
    shown += [("not used", f"{entry['file']}: {entry['reason']}") for entry in data["notes"]]
    return [data["label"], *(f"  {name:<13} {value}" for name, value in shown)]


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
