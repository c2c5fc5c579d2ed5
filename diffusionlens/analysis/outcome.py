"""From finished runs to the table, per-picture values, material for figures and the manifest."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from diffusionlens.analysis.diagnostic import Diagnostic
from diffusionlens.analysis.explorer import Explorer
from diffusionlens.analysis.norms.diagnostic import Norms
from diffusionlens.analysis.pca import Pca, align, to_rgb
from diffusionlens.analysis.pib import Pib
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.run import Run, Settings
from diffusionlens.data.sample import PictureSource
from diffusionlens.material import ModelMaterial
from diffusionlens.memory import peak_memory
from diffusionlens.per_image import Block, PerImage, Series
from diffusionlens.results import COLUMNS, Row, tidy, to_frame
from diffusionlens.shelf import Shelf, Storage


def rows_of(diagnostics: Sequence[Diagnostic]) -> list[Row]:
    """Every diagnostic's rows.

    Linear algebra and k-means get one thread: the matrices are small, waiting threads would fight torch's for the cores (a
    tenfold slowdown was seen), and one thread gives the same bits every time.
    """
    with threadpool_limits(1):
        return [row for diagnostic in diagnostics for row in diagnostic.table()]


def table_of(run: Run, source: PictureSource) -> pd.DataFrame:
    rows = rows_of(run.diagnostics)
    return to_frame(rows, run.backbone.label, source.label) if rows else tidy(pd.DataFrame(columns=COLUMNS))


def per_image_of(run: Run, source: PictureSource) -> PerImage:
    """Per-picture values of every series that is not of a single head."""
    parts, storage = [], Storage()
    for diagnostic in run.diagnostics:
        names = np.array([source.name(index) for index in diagnostic.order], dtype=object)
        for columns, values in diagnostic.per_image():
            kept = [place for place, column in enumerate(columns) if not isinstance(column.head, int)]
            series = [
                Series(column.metric, column.layer, str(column.head or ""), column.token or "")
                for column in (columns[place] for place in kept)
            ]
            shelf = Shelf(storage)
            shelf.append(values[:, kept])
            parts.append(Block(run.backbone.label, source.label, diagnostic.name, series, names, shelf))
    return PerImage(parts)


def material_of(runs: list[Run]) -> list[ModelMaterial]:
    """The maps on the sample pictures; from the second model on, PCA components are turned towards the first's."""
    material = []
    first: dict[int, Any] = {}
    for run in runs:
        indices = sorted(run.samples)
        pib, pca, norms = (run.find(kind) for kind in (Pib, Pca, Norms))
        scores = {}
        if pib is not None:
            scores = {
                layer: np.stack([pib.score_maps[layer, index] for index in indices])
                for layer in run.context.layers
                if indices and (layer, indices[0]) in pib.score_maps
            }
        colours = {}
        if pca is not None and indices:
            for layer, (components, _) in pca.maps().items():
                reference = first.setdefault(layer, components)
                turned = components if reference is components else align(components, reference)
                colours[layer] = to_rgb(turned)
        histograms = {} if norms is None or not norms.order else norms.histograms()
        pictures = [run.samples[index] for index in indices]
        more = {name: value for diagnostic in run.diagnostics for name, value in diagnostic.shown().items()}
        material.append(ModelMaterial(run.backbone.label, pictures, scores, colours, histograms, **more))
    return material


def manifest_of(
    runs: list[Run],
    source: PictureSource,
    settings: Settings,
    indices: list[int],
    device: torch.device,
    processes: Processes,
    seconds: float,
) -> dict[str, Any]:
    skipped = list(source.skipped) + [(entry.file, entry.reason) for entry in runs[0].skipped]
    return {
        "models": [_model_entry(run) for run in runs],
        "data": [
            {
                "label": source.label,
                "spec": source.spec,
                "pictures": len(source),
                "chosen": len(indices),
                "measured": len(indices) - len(runs[0].skipped),
                "provides": sorted(source.provides),
                "skipped": [{"file": file, "reason": reason} for file, reason in skipped],
                "notes": [{"file": file, "reason": note} for file, note in runs[0].notes],
            }
        ],
        "analyses": {name: settings.options[name].model_dump() for name in settings.analyses if name != Explorer.name},
        **{name: settings.options[name].model_dump() for name in settings.analyses if name == Explorer.name},
        "left_out": [
            {"model": run.backbone.label, "what": left.what, "reason": left.reason}
            for run in runs
            for left in run.left_out
        ],
        "settings": {
            "layers": settings.layers,
            "fit": settings.fit,
            "batch_size": settings.batch_size,
            "workers": settings.workers,
            "seed": settings.seed,
        },
        "versions": versions(),
        "device": str(device),
        "processes": processes.count,
        "wall_seconds": round(seconds, 2),
        "peak_memory": peak_memory(),
    }


def _model_entry(run: Run) -> dict[str, Any]:
    entry = {"label": run.backbone.label, **run.backbone.describe()}
    pib = run.find(Pib)
    if pib is not None:
        entry["pib_query"], entry["pib_not_measured"] = pib.query, pib.dropped_pictures
    others = [diagnostic for diagnostic in run.diagnostics if diagnostic is not pib]
    entry["not_measured"] = {one.name: dropped for one in others if (dropped := one.dropped_pictures)}
    entry["extra_forwards"] = {one.name: int(one.extra_forwards) for one in others if one.extra_forwards}
    if (explorer := run.find(Explorer)) is not None:
        entry["explorer"] = explorer.shown()["explored"].summary()
    return entry


def versions() -> dict[str, str]:
    """Versions of Python and of the packages whose numbers these are."""
    found = {"python": platform.python_version()}
    for name in ("diffusionlens", "torch", "torchvision", "timm", "numpy", "pandas", "scikit-learn", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
