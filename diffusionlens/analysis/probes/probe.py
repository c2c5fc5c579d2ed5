"""The probe of a task: tokens of all layers once, heads of all layers and token kinds, scores, gains, pictures."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from diffusionlens.analysis.device import refuse_too_large, resolve_device
from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.measure import Progress, parse_layers, refuse_doubles
from diffusionlens.analysis.probes.classification import Classification, classify_layer
from diffusionlens.analysis.probes.depth import Depth
from diffusionlens.analysis.probes.heads import LayerHeads
from diffusionlens.analysis.probes.kinds import usable_kinds
from diffusionlens.analysis.probes.outcome import absent_classes, in_order, manifest_of, per_image_of
from diffusionlens.analysis.probes.recipe import ClassificationRecipe, DenseRecipe, DepthRecipe
from diffusionlens.analysis.probes.run import ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.saved import SavedHeads, check_heads, read_heads
from diffusionlens.analysis.probes.scores import LayerScores, gain_rows, score_rows
from diffusionlens.analysis.probes.segmentation import Segmentation
from diffusionlens.analysis.probes.store import StoreRequest, TokenStore, model_digest, open_store
from diffusionlens.analysis.probes.training import (
    DenseTask,
    Scored,
    best_rates,
    evaluate_dense,
    split_held_out,
    train_dense,
)
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.run import Measurement
from diffusionlens.capture import capture
from diffusionlens.data.sample import PictureSource
from diffusionlens.data.transform import Fit
from diffusionlens.errors import InputError
from diffusionlens.material import ModelMaterial
from diffusionlens.memory import enough_memory
from diffusionlens.models.backbone import Backbone
from diffusionlens.results import COLUMNS, PER_IMAGE_COLUMNS, tidy, to_frame
from diffusionlens.spec import parse_spec


@dataclass
class ProbeOutcome:
    """What came out, and every model's run with its heads."""

    measurement: Measurement
    runs: list[ModelProbe]


def probe(
    backbones: Sequence[Backbone],
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    progress: Progress = lambda *_: None,
    processes: Processes | None = None,
) -> ProbeOutcome | None:
    """Trains heads on `train` and scores them on `test`, for every model.

    Returns:
        The measurement and the heads; None in processes other than the first.

    Raises:
        InputError: a model, the data or a setting can't be used.
    """
    processes = processes or Processes()
    started = time.monotonic()
    with processes.together():
        refuse_doubles([backbone.label for backbone in backbones])
        check_labels(settings.task, test, train)
        if train is None and settings.heads is None:
            raise InputError(
                "--train is missing; wanted what the heads learn from, as voc:ROOT?split=train, or --heads FILE"
            )
        if settings.heads is not None and (settings.task == "classification" or len(backbones) > 1):
            raise InputError("--heads goes with one model, and with segmentation or depth")
        device = resolve_device(settings.device, processes)
        task = task_of(settings, test)
        runs = [_prepare(backbone, settings, device) for backbone in backbones]
    with ExitStack() as stack:
        cache = settings.cache
        if cache is None:
            place = None if settings.room is None else _nearest(settings.room)
            with processes.together():
                made = (
                    stack.enter_context(tempfile.TemporaryDirectory(prefix=".diffusionlens-tokens-", dir=place))
                    if processes.rank == 0
                    else None
                )
            cache = Path(str(processes.share(made)))
        info: dict[str, Any] = {}
        for run in runs:
            info = _probe_model(run, task, test, train, settings, cache, device, progress, processes)
    with processes.together():
        if processes.rank != 0:
            return None
        frames = [to_frame(run.rows, run.backbone.label, test.label) for run in runs if run.rows]
        if not frames:
            raise InputError(f"nothing could be probed on {test.label}: no picture has anything to score")
        results = pd.concat(frames, ignore_index=True)
        values = [part for run in runs for part in run.per_image]
        per_image = pd.concat(values, ignore_index=True) if values else pd.DataFrame(columns=PER_IMAGE_COLUMNS)
        manifest = manifest_of(runs, test, train, settings, info, device, processes, time.monotonic() - started)
        material = [ModelMaterial(run.backbone.label, []) for run in runs]
        return ProbeOutcome(Measurement(tidy(results[COLUMNS]), per_image, material, manifest), runs)


def _nearest(place: Path) -> Path:
    return next(parent for parent in place.parents if parent.exists())


def check_labels(task: str, test: PictureSource, train: PictureSource | None) -> None:
    """Refuses data without what the task needs, and two sets with different classes."""
    need = {"segmentation": "masks", "depth": "depth", "classification": "labels"}[task]
    for source in (test, train):
        if source is not None and need not in source.provides:
            there = ", ".join(sorted(source.provides)) or "nothing"
            raise InputError(f"{source.label} has no {need}, which {task} needs (it has {there}); give other data")
    if train is None:
        return
    one, other = (list(source.mask_classes if task == "segmentation" else source.classes) for source in (test, train))
    if task != "depth" and one != other:
        raise InputError(
            f"{train.label} has {len(other)} classes and {test.label} {len(one)}, or under other names; train and test need "
            f"the same"
        )


def task_of(settings: ProbeSettings, test: PictureSource) -> Scored:
    recipe = settings.recipe
    if isinstance(recipe, DepthRecipe):
        kind = parse_spec(test.spec).kind
        crop = recipe.crop_name
        if crop == "auto":
            crop = {"nyuv2": "eigen", "kitti": "garg"}.get(kind, "none")  # type: ignore[assignment]
        largest = (80.0 if kind == "kitti" else 10.0) if recipe.max_depth == "auto" else recipe.max_depth
        return Depth(recipe.bins, recipe.points, (recipe.min_depth, largest), crop, recipe.sigloss_warmup)
    if isinstance(recipe, DenseRecipe):
        return Segmentation(len(test.mask_classes), recipe.points)
    return Classification("linear_top1")


def _prepare(backbone: Backbone, settings: ProbeSettings, device: torch.device) -> ModelProbe:
    with enough_memory(f"{backbone.label} on {device}", "give a smaller --size or another --device"):
        size = settings.size or backbone.default_size()
        refuse_too_large(backbone, size, device, attention=False)
        backbone.to(device)
        backbone.set_size(size)
        layers = parse_layers(settings.layers, backbone.depth)
        capture(backbone, torch.zeros(1, 3, *backbone.size, device=device), layers=layers)
        backbone.to(torch.device("cpu"))
    return ModelProbe(backbone, layers)


def _probe_model(
    run: ModelProbe,
    task: Scored,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    cache: Path,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> dict[str, Any]:
    """Fills `run`; gives what the manifest says of the data."""
    target = {"segmentation": "mask", "depth": "depth", "classification": "label"}[settings.task]
    stores = []
    size = settings.batch_size or (64 if device.type == "cuda" else 8)
    started = time.monotonic()
    with enough_memory(f"{size} pictures at a time on {device}", "give a smaller --batch-size or --size"):
        for source in (test,) if settings.heads is not None or train is None else (test, train):
            fit: Fit = "crop" if settings.task == "classification" else "squash"
            request = StoreRequest(
                source, range(len(source)), run.layers, fit, settings.task == "classification", target, size,
                settings.workers, device,
            )  # fmt: skip
            stores.append(open_store(run.backbone, request, cache, progress, processes))
    forward_seconds = time.monotonic() - started
    kinds, left_out = usable_kinds(
        settings.kinds, has_cls=run.backbone.has_cls, pictures=min(len(store) for store in stores)
    )
    run.left_out += [LeftOut(kind, reason) for kind, reason in left_out.items()]
    if not kinds:
        raise InputError(f"{run.backbone.label}: none of the token kinds can be had ({'; '.join(left_out.values())})")
    saved: SavedHeads | None = None
    digest = model_digest(run.backbone)
    if settings.heads is not None:
        with processes.together():
            saved = read_heads(settings.heads, device)
            classes = list(test.mask_classes)
            check_heads(saved, task.name, task.outputs, classes, digest, run.backbone.label, settings.heads)  # type: ignore[attr-defined]
            kinds = tuple(saved.facts["kinds"])
            run.layers = tuple(layer for layer in run.layers if any(own == layer for own, _ in saved.heads))
            if not run.layers:
                raise InputError(f"--heads {settings.heads} has no head of the layers {settings.layers}")
    mine = run.layers[processes.rank :: processes.count]
    what, found, rates = f"{run.backbone.label}: heads by layer", [], {}
    with processes.together(), enough_memory("the heads", "give fewer --layers, --tokens or rates"):
        progress(what, 0, len(mine))
        for done, layer in enumerate(mine, start=1):
            if isinstance(settings.recipe, ClassificationRecipe):
                scored, chosen, reasons = classify_layer(
                    stores[1], stores[0], layer, kinds, settings.recipe, settings.seeds, settings.seed,
                    len(test.classes), device, processes.stop_with_others,
                )  # fmt: skip
                run.left_out += [LeftOut(name, reason) for name, reason in reasons.items() if layer == run.layers[0]]
            else:
                scored, chosen, heads = _dense_layer(stores, task, layer, kinds, settings, saved, device, processes)  # type: ignore[arg-type]
                run.heads |= heads
            for own_task, one in scored:
                found += [(layer, score_rows(own_task, one, settings.seed))]
                run.per_image.append(per_image_of(own_task, one, stores[0].names, run.backbone.label, test.label))
                if own_task.primary == task.primary and not one.suffix:
                    found += [(layer, gain_rows(own_task, one, settings.seed))]
            rates[layer] = chosen
            progress(what, done, len(mine))
    parts = processes.gather((found, rates, run.per_image, run.heads))
    if processes.rank == 0:
        merged = [entry for part in parts for entry in part[0]]
        run.rows = in_order([row for _, rows in merged for row in rows])
        rates = {layer: chosen for part in parts for layer, chosen in part[1].items()}
        run.per_image = [frame for part in parts for frame in part[2]]
        run.heads = {unit: own for part in parts for unit, own in part[3].items()}
    run.facts = {
        "backbone_forwards": sum(store.forwards for store in stores),
        "forward_seconds": round(forward_seconds, 2),
        "head_seconds": round(time.monotonic() - started - forward_seconds, 2),
        "token_bytes": sum(store.bytes for store in stores),
        "learning_rates": {str(layer): rates[layer] for layer in sorted(rates)},
    }
    if run.heads:
        example = next(iter(run.heads.values()))
        run.head_facts = {
            "task": task.name,
            "kinds": list(example.kinds),
            "outputs": example.outputs,
            "width": example.width,
            "batch_norm": example.batch_norm,
            "classes": list(test.mask_classes),
            "model": run.backbone.label,
            "digest": digest,
            "trained_on": None if train is None else train.spec,
            "learning_rates": run.facts["learning_rates"],
        }
    absent = absent_classes(stores[0], test) if settings.task == "segmentation" else []
    info = {"train": stores[-1].meta, "test": stores[0].meta, "absent": absent}
    for store in stores:
        store.close()
    return info


def _dense_layer(
    stores: Sequence[TokenStore],
    task: DenseTask,
    layer: int,
    kinds: tuple[str, ...],
    settings: ProbeSettings,
    saved: SavedHeads | None,
    device: torch.device,
    processes: Processes,
) -> tuple[list[tuple[Scored, LayerScores]], dict[str, float], dict[tuple[int, int], LayerHeads]]:
    """Scores, rates and heads of a layer; saved heads are taken where there are some."""
    recipe, stop, test = settings.recipe, processes.stop_with_others, stores[0]
    assert isinstance(recipe, DenseRecipe)
    if saved is not None:
        taken = {unit: own for unit, own in saved.heads.items() if unit[0] == layer}
        rates = dict(saved.facts["learning_rates"].get(str(layer), {}))
    else:
        train = stores[1]
        learn, held_out = split_held_out(len(train), recipe, settings.seed)
        heads = [
            train_dense(task, train, learn, layer, kinds, recipe, settings.seed + number, device, stop)
            for number in range(settings.seeds)
        ]
        chosen = [0] * len(kinds)
        if held_out:
            chosen = best_rates(task, evaluate_dense(task, heads, train, held_out, layer, settings.seed, stop))
        taken = {(layer, number): own.select(chosen) for number, own in enumerate(heads)}
        rates = {kind: recipe.rates[place] for kind, place in zip(kinds, chosen, strict=True)}
    sums = evaluate_dense(task, list(taken.values()), test, range(len(test)), layer, settings.seed, stop)[:, :, :, 0]
    return [(task, LayerScores(layer, kinds, sums.double().numpy()))], rates, taken
