"""The command: parse, call one function, print. Results go to standard output, everything else to standard error."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionlens import api
from diffusionlens.bench.measure import bench_measure
from diffusionlens.cli_train import train
from diffusionlens.errors import InputError
from diffusionlens.progress import ProgressReport

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="What happened to the patch tokens of a Vision Transformer? Weights and pictures in, one table, figures and a page "
    "out.",
)
bench = typer.Typer(no_args_is_help=True, help="Time the program on this machine; ratios, alternated in one run.")
app.add_typer(bench, name="bench")
app.command()(train)

Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="[label=]timm:NAME or a weights file")]
Size = Annotated[str | None, typer.Option(help="picture size, N or HxW; default 224, or a smaller model's own")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
Images = Annotated[int | None, typer.Option(help="at most so many pictures, evenly spaced")]


@app.command()
def check(
    models: Models,
    data: Annotated[str | None, typer.Option(help="[label=]KIND:ROOT[?key=value]")] = None,
    size: Size = None,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Show what would be used: layers, tokens, preprocessing, dropped keys; pictures, annotations, unreadable files."""
    with ProgressReport() as progress:
        found = api.check(models, data, size=size, images=images, progress=progress)
    if as_json:
        print(json.dumps(found, indent=2, default=str))
        return
    for model in found["models"]:
        _print_model(model)
    if found["data"] is not None:
        _print_data(found["data"])


@app.command()
def measure(
    models: Models,
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]; KIND: voc, coco, imagenet, ...")],
    out: Annotated[
        Path, typer.Option(help="result directory to make; an earlier result is replaced when this one is whole")
    ],
    analyses: Annotated[str, typer.Option(help="all, or some of pib,norms,sparsity,similarity,pca")] = "all",
    layers: Annotated[str, typer.Option(help="all, last, or numbers like 0,6,12 (0 = embedding)")] = "all",
    images: Images = None,
    size: Size = None,
    fit: Annotated[str, typer.Option(help="crop (centre), squash (whole picture) or pad")] = "crop",
    batch_size: Annotated[
        int | None, typer.Option(help="pictures per forward; default 8 on a CPU, 64 on a GPU")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    workers: Annotated[int, typer.Option(help="processes that read pictures")] = 0,
    seed: Annotated[int, typer.Option(help="of bootstrap intervals and token samples")] = 0,
    setting: Annotated[list[str] | None, typer.Option("--set", help="option of an analysis, as pib.hit=center")] = None,
    as_json: Json = False,
) -> None:
    """Measure models on pictures: one table, figures and a page."""
    with ProgressReport() as progress:
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
    """Measure an untrained ViT-S/16 on built-in pictures: everything there is to see, without a download."""
    with ProgressReport() as progress:
        measured = api.demo(out, progress=progress)
    _print_measured(measured, as_json=as_json)


@bench.command("measure")
def measure_bench(
    model: Annotated[str, typer.Option(help="MODEL")] = "timm:vit_small_patch16_224?pretrained=false",
    data: Annotated[str, typer.Option(help="DATA")] = "scenes:?n=300&size=224",
    images: Annotated[int, typer.Option(help="pictures per round")] = 64,
    rounds: Annotated[int, typer.Option(help="rounds; bare forward and measure alternate")] = 5,
    batch_size: Annotated[int, typer.Option(help="pictures per forward")] = 8,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default torch's own choice")] = None,
    parts: Annotated[bool, typer.Option(help="also each analysis alone")] = True,
    memory: Annotated[bool, typer.Option(help="also the peak memory at 100 and at 300 pictures")] = True,
    as_json: Json = False,
) -> None:
    """Time `measure` with all analyses over all layers against the bare forward pass on the same decoded pictures."""
    found = bench_measure(model, data, images, rounds, batch_size, threads, parts=parts, memory=memory)
    print(json.dumps(found.as_dict(), indent=2) if as_json else found.as_text())


def _print_measured(measured: api.Measured, *, as_json: bool) -> None:
    if as_json:
        models = [entry["label"] for entry in measured.measurement.manifest["models"]]
        found = [{"model": finding.model, "text": finding.text} for finding in measured.findings]
        rows = len(measured.measurement.results)
        print(json.dumps({"page": str(measured.page), "models": models, "rows": rows, "findings": found}, indent=2))
        return
    for finding in measured.findings:
        print(f"{finding.model}: {finding.text}" if finding.model else finding.text)
    print(f"page: {measured.page}")


def _print_model(model: dict[str, Any]) -> None:
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
    print(model["label"])
    for name, value in lines.items():
        print(f"  {name:<13} {value}")
    for note in model["notes"]:
        print(f"  {'note':<13} {note}")
    for key, reason in model["dropped"]:
        print(f"  {'not loaded':<13} {key} ({reason})")


def _print_data(data: dict[str, Any]) -> None:
    print(data["label"])
    opened = f"{data['pictures']} found, {data['opened']} opened, {len(data['unreadable'])} unreadable or missing"
    counts = ", ".join(
        f"{data[key]} {key.replace('_', ' ')}" for key in ("boxes", "crowds", "difficult", "masks", "depth")
    )
    lines = {
        "pictures": opened,
        "sizes": f"{data['smallest']} to {data['largest']} (width, height)",
        "annotations": counts,
        "labels": f"{data['labelled']} pictures labelled, {data['classes']} classes",
        "no objects": f"{data['without_objects']} pictures",
    }
    for name, value in lines.items():
        print(f"  {name:<13} {value}")
    for entry in data["unreadable"]:
        print(f"  {'skipped':<13} {entry['file']}: {entry['reason']}")
    for entry in data["notes"]:
        print(f"  {'not used':<13} {entry['file']}: {entry['reason']}")


def main() -> None:
    """Runs the command; exit status 0 done, 2 the request or an input is wrong, 1 a fault of the program."""
    logging.getLogger("timm").setLevel(logging.ERROR)
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
