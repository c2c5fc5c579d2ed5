"""What stands beside a figure: what it counts, and its numbers in words for readers who can't see it."""

from collections.abc import Sequence

import pandas as pd

from diffusionlens.analysis.registry import added_analyses
from diffusionlens.figures.diffusion_maps import LEAKAGE_PANELS
from diffusionlens.figures.layer_curves import SIMILARITY_PANELS, SPARSITY_PANELS, Panel
from diffusionlens.figures.picture_maps import overlay_places, shown_layers
from diffusionlens.figures.probe_curves import SCORES, score_rows
from diffusionlens.material import ModelMaterial
from diffusionlens.pages.numbers import short

_PIB = (Panel("Point-in-Box", "", "pib", "pib"),)
_CURVES: dict[str, Sequence[Panel]] = {
    "pib_by_layer": _PIB,
    "leakage_by_layer": LEAKAGE_PANELS,
    "spread_by_distance": (Panel("Spread next to the box", "", "diffusion", "spread", "ring 1"),),
    "similarity_by_layer": SIMILARITY_PANELS,
    "sparsity_by_layer": SPARSITY_PANELS,
    "sparsity_by_head": (Panel("Effective support", "", "sparsity", "effective_support", "patch>all"),),
}

_SHOWN = {
    "interventions": ("interventions", "changed picture"),
    "provenance_maps": ("provenance_maps", "attribution map"),
    "discovered": ("discovered", "picture"),
    "segmentation_pictures": ("probed", "picture"),
    "depth_pictures": ("probed", "picture"),
}
"""Stem -> the field of `ModelMaterial` that it shows, and what one of them is."""


def basis_of(stem: str, results: pd.DataFrame, material: Sequence[ModelMaterial]) -> str:
    """What the figure counts, as "29 pictures of voc."; the pictures behind its numbers, not those of the run."""
    data = str(results["data"].iloc[0]) if len(results) else ""
    panels = _panels(stem, results)
    if panels:
        rows = pd.concat([panel.rows(results) for panel in panels])
        return f"{count_of(rows)} of {data}."
    if stem in ("probe_by_layer", "gain_bars"):
        return f"{count_of(results[results['analysis'] != 'complementarity'])} of {data}."
    if stem in _SHOWN:
        name, what = _SHOWN[stem]
        most = max(len(getattr(entry, name)) for entry in material)
        return f"{most} {what}{'s' * (most != 1)} of {data}."
    pictures = material[0].pictures
    if stem == "pib_overlay":
        return f"{_pictures(len(overlay_places(pictures)))} of {data}, as the first model saw them."
    if stem == "pca_maps":
        return f"{_pictures(min(len(pictures), 5))} shown of the {len(pictures)} from {data} that the components are fitted on."
    tokens = {int(histogram.counts.sum()) for entry in material for histogram in entry.norm_histograms.values()}
    return f"{_range(tokens)} patch tokens of {data} in every histogram."


def _panels(stem: str, results: pd.DataFrame) -> Sequence[Panel]:
    return added_panels(results) if stem == "added_by_layer" else _CURVES.get(stem, ())


def added_panels(results: pd.DataFrame) -> list[Panel]:
    """One panel for every metric and token of the analyses that `register` has added."""
    rows = results[results["analysis"].isin(added_analyses()) & results["layer"].notna()]
    kinds = rows[["analysis", "metric", "token"]].drop_duplicates().itertuples(index=False, name=None)
    return [Panel(f"{metric} {token}".strip(), analysis, analysis, metric, token) for analysis, metric, token in kinds]


def count_of(rows: pd.DataFrame) -> str:
    """How many pictures the rows with an interval are means of, as "29 pictures" or "29 to 31 pictures"; of gains, how many
    trainings."""
    means = rows[rows["low"].notna()]
    counts = {int(n) for n in (means if len(means) else rows)["n"].dropna()}
    what = "training" if len(rows) and (rows["metric"] == "gain").all() else "picture"
    return f"{_range(counts)} {what}{'s' * (counts != {1})}"


def gist_of(stem: str, results: pd.DataFrame, models: Sequence[str], material: Sequence[ModelMaterial]) -> str:
    """The figure in words: where every curve starts and ends, and its extremes."""
    if stem == "probe_by_layer":
        return _probed(results, models)
    if stem == "gain_bars":
        return _gains(results, models)
    if stem == "sparsity_by_head":
        rows = results[(results["metric"] == "effective_support") & (results["token"] == "patch>all")]
        rows = rows[~rows["head"].isin(["", "mean"])]
        spans = [(model, rows[rows["model"] == model]["value"]) for model in models]
        return "; ".join(f"{model}: {short(v.min())} to {short(v.max())} tokens" for model, v in spans if len(v)) + "."
    if curves := _panels(stem, results):
        panels = [(panel, panel.rows(results)) for panel in curves]
        parts = [f"{panel.title}: {_courses(rows, models)}" for panel, rows in panels if len(rows)]
        return ". ".join(parts) + "."
    if stem == "norms":
        return "; ".join(filter(None, map(_peaks, material))) + "."
    if stem in _SHOWN:
        return (
            f"{_SHOWN[stem][1].capitalize()}s of {', '.join(e.model for e in material if getattr(e, _SHOWN[stem][0]))}."
        )
    layers = [
        (entry.model, entry.score_maps if stem == "pib_overlay" else entry.pca_maps)
        for entry in material
        if entry.score_maps or entry.pca_maps
    ]
    shown = [
        f"{model}, layers {', '.join(map(str, shown_layers(list(maps), len(layers))))}"
        for model, maps in layers
        if maps
    ]
    return f"Maps of {'; '.join(shown)}, beside the pictures."


def _probed(results: pd.DataFrame, models: Sequence[str]) -> str:
    parts = []
    for scores in SCORES.values():
        for metric, label, suffix in scores:
            rows = score_rows(results, metric, suffix).sort_values("layer", kind="stable")
            for token in dict.fromkeys(rows["token"]):
                parts.append(f"{label}, {token}: {_courses(rows[rows['token'] == token], models)}")
    return ". ".join(parts) + "."


def _gains(results: pd.DataFrame, models: Sequence[str]) -> str:
    rows = results[results["metric"] == "gain"]
    parts = []
    for model in models:
        own = rows[rows["model"] == model]
        last = own[own["layer"] == own["layer"].max()]
        parts += [f"{model}, {row.token}: {short(float(str(row.value)))}" for row in last.itertuples()]
    return "; ".join(parts) + "."


def _courses(rows: pd.DataFrame, models: Sequence[str]) -> str:
    parts = []
    for model in models:
        own = rows[(rows["model"] == model) & rows["value"].notna()]
        if own.empty:
            continue
        points = list(zip(own["layer"].tolist(), own["value"].tolist(), strict=True))
        first, last, top = (
            _point(*point) for point in (points[0], points[-1], max(points, key=lambda point: point[1]))
        )
        parts.append(f"{model} {last}" if len(points) == 1 else f"{model} {first}, {last}, highest {top}")
    return "; ".join(parts)


def _point(layer: int, value: float) -> str:
    return f"{short(value)} in layer {layer}"


def _peaks(entry: ModelMaterial) -> str:
    if not entry.norm_histograms:
        return ""
    parts = []
    for layer in sorted({min(entry.norm_histograms), max(entry.norm_histograms)}):
        histogram = entry.norm_histograms[layer]
        place = int(histogram.counts.argmax())
        peak = float((histogram.edges[place] * histogram.edges[place + 1]) ** 0.5)
        parts.append(f"most norms near {short(peak, 2)} in layer {layer}")
    return f"{entry.model}: {', '.join(parts)}"


def _pictures(count: int) -> str:
    return f"{count} picture{'s' * (count != 1)}"


def _range(counts: set[int]) -> str:
    if not counts:
        return "no"
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
