"""The page of a measurement: findings, figures, tables, what was left out, how it was made."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from diffusionlens.explorer.section import explorer_section
from diffusionlens.material import ModelMaterial
from diffusionlens.pages.descriptions import count_of
from diffusionlens.pages.figures import PageFigure
from diffusionlens.pages.findings import findings
from diffusionlens.pages.probe_remarks import probe_remarks
from diffusionlens.pages.tables import by_layer_table, key_metrics, last_layer_rows, last_layer_table
from diffusionlens.pages.template import Facts, Page, Table, render

ANALYSES = {
    "pib": "Point-in-Box",
    "norms": "Token norms",
    "sparsity": "Attention sparsity",
    "similarity": "Similarity of tokens",
    "pca": "Principal components",
    "diffusion": "Semantic diffusion",
    "discovery": "Objects without labels",
    "segmentation": "Segmentation probe",
    "depth": "Depth probe",
    "classification": "Classification probe",
    "complementarity": "What CLS adds",
}


def render_page(
    results: pd.DataFrame,
    manifest: dict[str, Any],
    figures: Sequence[PageFigure],
    material: Sequence[ModelMaterial] = (),
) -> str:
    """The page of a measurement; with `material` that the token explorer can show, also that."""
    models = [entry["label"] for entry in manifest["models"]]
    data = manifest["data"][0]
    found = findings(results, models, [m["label"] for m in manifest["models"] if m["untrained"]])
    found += probe_remarks(manifest)
    groups = [(model, [finding for finding in found if finding.model == model]) for model in models]
    groups.append(("Side by side", [f for f in found if f.model is None and not f.warning]))
    return render(
        Page(
            title=f"{' · '.join(models)} on {data['label']}",
            lead=_lead(manifest),
            warnings=[finding for finding in found if finding.warning],
            groups=groups,
            figures=figures,
            tables=_last_layers(results, models),
            layer_tables=by_layer(results, models),
            left_out=manifest["left_out"],
            skipped=_of_all_data(manifest, "skipped"),
            notes=_of_all_data(manifest, "notes"),
            unmeasured=unmeasured(manifest),
            made=_made(manifest),
            versions=manifest["versions"],
            explorer=explorer_section([entry.explored for entry in material if entry.explored is not None]),
        )
    )


def _of_all_data(manifest: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Entries of all data sets, those of the training pictures with that word before them."""
    return [
        entry | {"reason": f"training picture: {entry['reason']}"} if data.get("role") == "train" else entry
        for data in manifest["data"]
        for entry in data[what]
    ]


def _lead(manifest: dict[str, Any]) -> str:
    data, models = manifest["data"][0], manifest["models"]
    names = ", ".join(ANALYSES.get(name, name) for name in manifest["analyses"])
    sizes = {" × ".join(map(str, model["size"])) for model in models}
    return (
        f"{len(models)} model{'s' * (len(models) > 1)} measured on {data['measured']} pictures of {data['label']} "
        f"at {' and '.join(sorted(sizes))} "
        f"pixels: {names}."
    )


def _last_layers(results: pd.DataFrame, models: Sequence[str]) -> list[Table]:
    tables = []
    for analysis in key_metrics(results):
        table = last_layer_table(results, analysis, models, intervals=True)
        if not table.empty:
            cells = table.fillna("–").astype(str).values.tolist()
            shown = [[(row[0], ""), *(cell(text) for text in row[1:])] for row in cells]
            of = last_layer_rows(results, analysis, models)
            basis = f" ({count_of(of)})" if of["low"].notna().any() else ", share of variance" * (analysis == "pca")
            if analysis == "complementarity":  # what varies there is the training
                trainings = int(of["n"].max())
                basis = f" ({trainings} training{'s' * (trainings > 1)})"
            tables.append(Table(ANALYSES.get(analysis, analysis) + basis, list(table.columns), shown))
    return tables


def cell(text: str) -> tuple[str, str]:
    """`86.2 (69.4 to 94.5)` as value and interval; a mark behind goes with the value."""
    value, bracket, rest = text.partition(" (")
    interval, _, mark = rest.partition(")")
    return (value + mark, interval) if bracket else (text, "")


def by_layer(results: pd.DataFrame, models: Sequence[str]) -> list[tuple[str, list[Table]]]:
    """(analysis, one table per model) for every analysis."""
    groups = []
    for analysis in key_metrics(results):
        name, tables = ANALYSES.get(analysis, analysis), []
        for model in models:
            table = by_layer_table(results, analysis, model)
            if not table.empty:
                rows = zip(table.index, table.values.tolist(), strict=True)
                shown = [[(metric, ""), *map(cell, values)] for metric, values in rows]
                head = ["metric", *(f"layer {layer}" for layer in table.columns)]
                tables.append(Table(f"{name} by layer: {model}", head, shown))
        if tables:
            groups.append((f"{name}, by layer", tables))
    return groups


def unmeasured(manifest: dict[str, Any]) -> list[str]:
    """Pictures that an analysis could not use, by reason."""
    lines = []
    for model in manifest["models"]:
        for reason, count in model.get("pib_not_measured", {}).items():
            lines.append(f"{model['label']}: {count} with {reason}")
        for analysis, dropped in model.get("not_measured", {}).items():
            lines += [f"{model['label']}, {analysis}: {count} ({reason})" for reason, count in dropped.items()]
    return lines


def _made(manifest: dict[str, Any]) -> list[Facts]:
    models = [facts_of_model(model) for model in manifest["models"]]
    return [*models, *map(facts_of_data, manifest["data"]), facts_of_run(manifest)]


def facts_of_model(model: dict[str, Any]) -> Facts:
    """Where a model came from and what it is."""
    tokens = f"{model['grid'][0]} x {model['grid'][1]} patches"
    tokens += ", CLS" * model["cls"] + f", {model['registers']} registers" * bool(model["registers"])
    items = [
        ("given as", model["spec"]),
        ("family", model["family"] + (f", {model['branch']}" if model["branch"] else "")),
        ("architecture", f"{model['architecture']}; {model['parameters'] / 1e6:.2f} M parameters"),
        ("attention", model["attention"]),
        ("tokens", tokens),
        ("positions", f"resized by the rule '{model['positions']}'"),
        ("SHA-256", model["sha256"] or "not from a file"),
        *((f"extra forward passes, {name}", str(n)) for name, n in model.get("extra_forwards", {}).items()),
    ]
    items += _heads_of(model.get("probe", {}))
    if stored := model.get("explorer"):
        items.append(("token explorer", _stored(stored)))
    if model["epoch"] is not None:
        items.append(("epoch", str(model["epoch"])))
    if model["dropped"]:
        items.append(("not loaded", f"{len(model['dropped'])} entries: " + _some(model["dropped"])))
    items += [("note", note) for note in model["notes"]]
    return Facts(model["label"], items)


def _heads_of(probe: dict[str, Any]) -> list[tuple[str, str]]:
    """Where heads were trained, if not here, and the learning rates of those on the last layer."""
    items = []
    if "heads" in probe:
        items.append(("heads trained on", f"{probe['heads']['trained_on']}, tokens of {probe['heads']['model']}"))
    rates = probe.get("learning_rates", {})
    if rates and any(rates.values()):
        last = max((layer for layer, own in rates.items() if own), key=int)
        told = ", ".join(f"{kind} {rate:g}" for kind, rate in rates[last].items())
        items.append((f"learning rates of layer {last}", told))
    return items


def _stored(explorer: dict[str, Any]) -> str:
    return (
        f"{explorer['pictures']} pictures in {explorer['bytes'] / 1e6:.2f} MB, {explorer['seconds']} s to pack, no extra forward "
        f"pass; largest error {explorer['cosine_error']:.4f} of a cosine and {explorer['attention_error']:.4f} of a weight"
    )


def facts_of_data(data: dict[str, Any]) -> Facts:
    """What the pictures were."""
    done = "used" if data.get("role") == "train" else "measured"
    items = [
        ("given as", data["spec"]),
        ("pictures", f"{data['pictures']} found, {data['chosen']} chosen, {data['measured']} {done}"),
        ("annotations", ", ".join(data["provides"]) or "none"),
    ]
    role = {"train": "Training data", "test": "Test data"}.get(data.get("role", ""), "Data")
    return Facts(f"{role}: {data['label']}", items)


def facts_of_run(manifest: dict[str, Any]) -> Facts:
    """Options, device, time and versions."""
    items = [(name, _options(options)) for name, options in manifest["analyses"].items()]
    items += [("token explorer", _options(manifest["explorer"]))] if "explorer" in manifest else []
    items += [("settings", _options(manifest["settings"])), ("device", manifest["device"])]
    items += [("processes", str(manifest["processes"])), ("time", f"{manifest['wall_seconds']} s")]
    if peak := manifest.get("peak_memory"):
        items.append(("most memory of the process", f"{peak / 2**20:.0f} MiB"))
    items += [("command", manifest.get("command", ""))] if manifest.get("command") else []
    items.append(("versions", ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())))
    return Facts("Run", items)


def _some(dropped: Sequence[Sequence[str]]) -> str:
    shown = ", ".join(f"{key} ({reason})" for key, reason in dropped[:6])
    return shown + (", ..." if len(dropped) > 6 else "")


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"
