"""From finished probes to rows in their order, per-picture values and the manifest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from diffusionlens.analysis.outcome import versions
from diffusionlens.analysis.probes.cached.store import TokenStore
from diffusionlens.analysis.probes.heads.training import Scored
from diffusionlens.analysis.probes.outcomes.overlap import pictures_in_both
from diffusionlens.analysis.probes.outcomes.scores import LayerScores, jackknife
from diffusionlens.analysis.probes.run import ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import SCORING
from diffusionlens.analysis.processes import Processes
from diffusionlens.data.sample import PictureSource
from diffusionlens.memory import peak_memory
from diffusionlens.results import JACKKNIFE, PER_IMAGE_COLUMNS, Row


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By analysis and metric as they first come, then by layer."""
    order = {key: place for place, key in enumerate(dict.fromkeys((row.analysis, row.metric) for row in rows))}
    analyses = list(dict.fromkeys(row.analysis for row in rows))
    return sorted(
        rows,
        key=lambda row: (
            analyses.index(row.analysis),
            order[row.analysis, row.metric],
            row.layer if row.layer is not None else -1,
        ),
    )


def per_image_of(task: Scored, found: LayerScores, names: Sequence[str], model: str, data: str) -> pd.DataFrame:
    """Every metric of every picture, the mean over seeds; of a ratio of sums also METRIC_jackknife (`jackknife`)."""
    counted = task.counts(found.sums).all((0, 2))
    parts = []
    with np.errstate(invalid="ignore", divide="ignore"):
        values = task.scores(found.sums)
    means = {metric: values[metric].mean(0)[counted] for metric in task.metrics if not metric.endswith("_pooled")}
    means |= {f"{metric}{JACKKNIFE}": own for metric, own in jackknife(task, found.sums[:, counted]).items()}
    for metric, mean in means.items():
        for place, kind in enumerate(found.kinds):
            part = pd.DataFrame({"name": np.array(names, dtype=object)[counted], "value": mean[:, place]})
            parts.append(part.assign(metric=metric, token=kind + found.suffix))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(model=model, data=data, analysis=task.name, layer=found.layer, head="")[PER_IMAGE_COLUMNS]


def rates_chosen(rates: Mapping[str, Mapping[str, float]], known: Sequence[float]) -> dict[str, Any]:
    """How many heads chose the highest and the lowest of several rates; nothing of a single one."""
    chosen = [rate for own in rates.values() for rate in own.values()]
    if len(known) < 2 or not chosen:
        return {}
    edges = {"highest": max(known), "lowest": min(known)}
    counts = {name: chosen.count(rate) for name, rate in edges.items()}
    return {"heads": len(chosen)} | counts | {f"{name}_rate": rate for name, rate in edges.items()}


def absent_classes(test: TokenStore, source: PictureSource) -> list[str]:
    """Classes that no labelled pixel of the test pictures has."""
    there: set[int] = set()
    for picture in range(len(test)):
        there |= set(test.target(picture).unique().tolist())
    return [name for number, name in enumerate(source.mask_classes) if number not in there]


def manifest_of(
    runs: Sequence[ModelProbe],
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    info: dict[str, Any],
    device: torch.device,
    processes: Processes,
    seconds: float,
) -> dict[str, Any]:
    data = []
    for role, source in (("test", test), ("train", train)):
        if source is None:
            continue
        meta = info[role]
        skipped = [*source.skipped, *map(tuple, meta["skipped"])]
        data.append(
            {
                "role": role,
                "label": source.label,
                "spec": source.spec,
                "pictures": len(source),
                "chosen": len(source),
                "measured": len(meta["names"]),
                "provides": sorted(source.provides),
                "skipped": [{"file": file, "reason": reason} for file, reason in skipped],
                "notes": [{"file": file, "reason": note} for file, note in meta["notes"]],
            }
        )
    task = settings.task
    recipe = settings.recipe.model_dump() | info.get("resolved", {})
    if settings.heads is not None:  # the others are of a training that was not this run's
        recipe = {key: value for key, value in recipe.items() if key in SCORING}
    return {
        "models": [{"label": run.backbone.label, **run.backbone.describe(), "probe": run.facts} for run in runs],
        "data": data,
        "analyses": {task: {"preset": settings.preset, **recipe}},
        "left_out": [
            {"model": run.backbone.label, "what": left.what, "reason": left.reason}
            for run in runs
            for left in run.left_out
        ],
        "classes_absent": info["absent"],
        "pictures_in_both": pictures_in_both(test, train),
        "settings": {
            "tokens": ",".join(settings.kinds),
            "layers": settings.layers,
            "seeds": settings.seeds,
            "seed": settings.seed,
            "batch_size": settings.batch_size,
            "workers": settings.workers,
        },
        "backbone_forwards": sum(run.facts["backbone_forwards"] for run in runs),
        "versions": versions(),
        "device": str(device),
        "processes": processes.count,
        "wall_seconds": round(seconds, 2),
        "peak_memory": peak_memory(),
    }
