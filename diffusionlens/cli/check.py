"""`diffusionlens check`: parse, call one function, print."""

import json
from typing import Annotated, Any

import typer

from diffusionlens import api
from diffusionlens.cli.parts import MODEL_HELP, Images, Json, Size, at_work, say
from diffusionlens.errors import InputError, printable


def check(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
    data: Annotated[str | None, typer.Option(help="[label=]KIND:ROOT[?key=value]")] = None,
    size: Size = None,
    images: Images = None,
    as_json: Json = False,
) -> None:
    """Show what would be used, and measure nothing. Of models: layers, tokens, preprocessing, dropped keys. Of data:
    pictures, annotations, unreadable files; every picture is opened, or --images of them."""
    if not models and data is None:
        raise InputError("nothing to check; give a MODEL, --data DATA, or both")
    with at_work() as progress:
        found = api.check(models or [], data, size=size, images=images, progress=progress)
    if as_json:
        say([json.dumps(found, indent=2, default=str)])
    else:
        lines = [line for model in found["models"] for line in model_lines(model)]
        say(map(printable, lines + ([] if found["data"] is None else data_lines(found["data"]))))
    if refused := found["refused"]:
        reasons = "; ".join(entry["reason"] for entry in refused)
        raise InputError(f"{len(refused)} of {len(models or [])} models can't be used: {reasons}")


def model_lines(model: dict[str, Any]) -> list[str]:
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
    if model["step"] is not None or model["epoch"] is not None:
        lines["trained"] = ", ".join(f"{unit} {model[unit]}" for unit in ("epoch", "step") if model[unit] is not None)
    if model["checkpoints"]:
        lines["checkpoints"] = f"{', '.join(model['checkpoints'])} (RUN@epoch=N or RUN@step=N takes one)"
    shown = [*lines.items(), *(("note", note) for note in model["notes"])]
    shown += [("not loaded", f"{key} ({reason})") for key, reason in model["dropped"]]
    return [model["label"], *(f"  {name:<13} {value}" for name, value in shown)]


def data_lines(data: dict[str, Any]) -> list[str]:
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
