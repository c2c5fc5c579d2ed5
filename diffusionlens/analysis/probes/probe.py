"""The probe of a task: tokens of all layers once, heads of all layers and token kinds, scores, gains, pictures."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from diffusionlens.analysis.device import refuse_too_large, resolve_device
from diffusionlens.analysis.measure import Progress, parse_layers, refuse_doubles
from diffusionlens.analysis.probes.cached.budget import refuse_too_much, training_bytes
from diffusionlens.analysis.probes.cached.probe import probe_cached
from diffusionlens.analysis.probes.cached.store import model_digest
from diffusionlens.analysis.probes.geometry.crops import geometry_of, resolved
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.heads.saved import (
    SavedHeads,
    fit_heads,
    read_heads,
    refuse_beside_heads,
    scored_with,
)
from diffusionlens.analysis.probes.heads.training import Scored
from diffusionlens.analysis.probes.outcomes.outcome import in_order, manifest_of, per_image_of, rates_chosen
from diffusionlens.analysis.probes.outcomes.scores import gain_rows, score_rows
from diffusionlens.analysis.probes.run import ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import (
    DenseRecipe,
    DepthRecipe,
    ProtocolRecipe,
    Recipe,
    StreamedRecipe,
)
from diffusionlens.analysis.probes.streamed.probe import probe_streamed
from diffusionlens.analysis.probes.tasks.classification import Classification
from diffusionlens.analysis.probes.tasks.depth import Depth
from diffusionlens.analysis.probes.tasks.labelled import refuse_other_sizes
from diffusionlens.analysis.probes.tasks.linear_protocol import probe_protocol, refuse_blocks
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.run import Measurement
from diffusionlens.capture import capture
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError
from diffusionlens.locks import temporary_directory
from diffusionlens.material import ModelMaterial
from diffusionlens.memory import enough_memory
from diffusionlens.models.backbone import Backbone
from diffusionlens.per_image import PerImage
from diffusionlens.results import COLUMNS, tidy, to_frame
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
        device = resolve_device(settings.device, processes)
        saved = None
        if settings.heads is not None:
            refuse_beside_heads(settings, train, len(backbones))
            saved = read_heads(settings.heads, device)
            settings = replace(settings, seeds=saved.facts.seeds)
            if isinstance(settings.recipe, DepthRecipe):
                settings = replace(settings, recipe=scored_with(settings.recipe, saved, settings.given))
        settings = replace(settings, recipe=without_auto(settings.recipe, test))
        task = task_of(settings, test)
        _check_streamed(settings)
        refuse_other_sizes(task, settings.recipe, test, train)
        runs = [_prepare(backbone, task, test, train, settings, saved, device) for backbone in backbones]
        if saved is not None:
            settings = replace(settings, kinds=runs[0].kinds)
    with ExitStack() as stack:
        cache = settings.cache
        if cache is None:
            place = None if settings.room is None else _nearest(settings.room)
            with processes.together():
                made = _scratch(place, stack) if processes.rank == 0 else None
            cache = Path(str(processes.share(made)))
        info: dict[str, Any] = {}
        for run in runs:
            info = _probe_model(run, task, test, train, settings, saved, cache, device, progress, processes)
    with processes.together():
        if processes.rank != 0:
            return None
        frames = [to_frame(run.rows, run.backbone.label, test.label) for run in runs if run.rows]
        if not frames:
            left = next((f"{left.what}: {left.reason}" for run in runs for left in run.left_out), None)
            raise InputError(f"nothing could be probed on {test.label}: {left or 'no picture has anything to score'}")
        results = pd.concat(frames, ignore_index=True)
        pictures = PerImage([part for run in runs for part in run.per_image])
        if isinstance(settings.recipe, StreamedRecipe):
            info["resolved"] = resolved(settings.recipe, train, test)
        manifest = manifest_of(runs, test, train, settings, info, device, processes, time.monotonic() - started)
        material = [ModelMaterial(run.backbone.label, [], probed=run.shown) for run in runs]
        return ProbeOutcome(Measurement(tidy(results[COLUMNS]), pictures, material, manifest), runs)


def _scratch(place: Path | None, stack: ExitStack) -> Path:
    """For the tokens of this run alone."""
    place = place or Path(tempfile.gettempdir())
    try:
        return stack.enter_context(temporary_directory(place, "tokens-"))
    except OSError as error:
        raise InputError(f"no room for tokens in {place} ({error.strerror or error}); give --cache DIR") from None


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
            f"--train {train.label} has {len(other)} classes and --data {test.label} {len(one)}, or under other names; "
            f"train and test need the same"
        )


def without_auto(recipe: Recipe, test: PictureSource) -> Recipe:
    """The recipe with what "auto" means for these data, as far as it is one thing for training and scoring.

    Raises:
        InputError: a range of depth that is empty.
    """
    if not isinstance(recipe, DepthRecipe):
        return recipe
    kind = parse_spec(test.spec).kind
    largest = (80.0 if kind == "kitti" else 10.0) if recipe.max_depth == "auto" else recipe.max_depth
    if recipe.min_depth >= largest:
        raise InputError(
            f"--set min_depth={recipe.min_depth:g} is not below max_depth, which is {largest:g}; give a range with both"
        )
    crop = {"nyuv2": "eigen", "kitti": "garg"}.get(kind, "none") if recipe.crop_name == "auto" else recipe.crop_name
    return recipe.model_copy(update={"max_depth": largest, "crop_name": crop})


def task_of(settings: ProbeSettings, test: PictureSource) -> Scored:
    """What is trained and scored; the recipe has no "auto" (see `without_auto`)."""
    recipe = settings.recipe
    if isinstance(recipe, DepthRecipe):
        assert recipe.max_depth != "auto"
        bounds = (recipe.min_depth, recipe.max_depth)
        return Depth(recipe.bins, recipe.points, bounds, recipe.crop_name, recipe.sigloss_warmup)
    if isinstance(recipe, DenseRecipe):
        return Segmentation(len(test.mask_classes), recipe.points)
    return Classification("linear_top1")


def _check_streamed(settings: ProbeSettings) -> None:
    """Refuses what has no meaning where tokens are not kept."""
    if isinstance(settings.recipe, ProtocolRecipe) and (settings.layers != "all" or settings.kinds != KINDS):
        raise InputError(
            f"--layers and --tokens go with --preset fast; for {settings.preset} give --set blocks=... pools=..."
        )
    if settings.preset == "fast":
        return
    if settings.cache is not None:
        raise InputError(f"--cache goes with --preset fast: {settings.preset} keeps no tokens")
    if settings.size is not None and isinstance(settings.recipe, StreamedRecipe):
        wanted = "window=... --set crop=..." if settings.task == "segmentation" else "view=... --set crop=..."
        raise InputError(f"--size goes with --preset fast; for {settings.preset} give --set {wanted}")


def _prepare(
    backbone: Backbone,
    task: Scored,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    saved: SavedHeads | None,
    device: torch.device,
) -> ModelProbe:
    """What can be refused is refused; then one empty picture through the model, at every size that it will have."""
    recipe = settings.recipe
    crop = None
    with enough_memory(f"{backbone.label} on {device}", "give a smaller --size or another --device"):
        backbone.to(device)
        sizes = [settings.size or backbone.default_size()]
        if isinstance(recipe, StreamedRecipe):
            geometry = geometry_of(recipe, backbone, train, test)
            crop, sizes = geometry.padding.padded, [geometry.padding.padded, geometry.scored]
        run = ModelProbe(backbone, parse_layers(settings.layers, backbone.depth, backbone.label), settings.kinds)
        if isinstance(recipe, ProtocolRecipe):
            refuse_blocks(backbone, recipe, settings.preset)
        if saved is not None:
            backbone.set_size(sizes[-1])
            fit_heads(saved, run, settings.task, test.mask_classes, settings, model_digest(backbone))
        elif train is not None:
            outputs = task.outputs if isinstance(task, Depth | Segmentation) else len(test.classes)
            needed = training_bytes(recipe, len(run.kinds), outputs, backbone.width, len(run.layers), len(train), crop)
            refuse_too_much(needed, recipe, device)
        for size in dict.fromkeys(sizes):
            refuse_too_large(backbone, size, device, attention=False)
            backbone.set_size(size)
            capture(backbone, torch.zeros(1, 3, *backbone.size, device=device), layers=run.layers)
        backbone.to(torch.device("cpu"))
    return run


def _probe_model(
    run: ModelProbe,
    task: Scored,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    saved: SavedHeads | None,
    cache: Path,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> dict[str, Any]:
    """Fills `run`; gives what the manifest says of the data."""
    if isinstance(settings.recipe, StreamedRecipe):
        found = probe_streamed(run, task, test, train, settings, saved, device, progress, processes)  # type: ignore[arg-type]
    elif isinstance(settings.recipe, ProtocolRecipe):
        assert train is not None
        found = probe_protocol(run, test, train, settings, device, progress, processes)
    else:
        found = probe_cached(run, task, test, train, settings, saved, cache, device, progress, processes)
    rows, per_image = [], []
    with processes.together():
        for layer, own_task, one in found.scored:
            rows.append((layer, score_rows(own_task, one, settings.seed)))
            per_image.append((layer, per_image_of(own_task, one, found.names, run.backbone.label, test.label)))
            if own_task.primary == task.primary and not one.suffix:
                rows.append((layer, gain_rows(own_task, one, settings.seed)))
    parts = processes.gather(
        (rows, found.rates, per_image, found.heads, found.shown, found.facts["backbone_forwards"], found.left_out)
    )
    run.rows = in_order([row for part in parts for _, own in part[0] for row in own])
    rates: dict[int, dict[str, float]] = {}
    for part in parts:
        for layer, chosen in part[1].items():
            rates.setdefault(layer, {}).update(chosen)
    # Layers in their order, whichever process had them, as of one process.
    run.per_image = [frame for _, frame in sorted((own for part in parts for own in part[2]), key=lambda own: own[0])]
    run.heads = dict(sorted((unit, own) for part in parts for unit, own in part[3].items()))
    run.shown = [picture for part in parts for picture in part[4]]
    run.left_out += [left for part in parts for left in part[6]]
    run.facts = found.facts | {"learning_rates": {str(layer): rates[layer] for layer in sorted(rates)}}
    if settings.preset != "fast":  # every process has made its own
        run.facts["backbone_forwards"] = sum(part[5] for part in parts)
    if saved is not None:
        run.facts["heads"] = {"trained_on": saved.facts.trained_on, "model": saved.facts.model}
    elif chosen := rates_chosen(run.facts["learning_rates"], settings.recipe.rates):
        run.facts["rates_chosen"] = chosen
    if run.heads and train is not None:
        run.head_facts = _head_facts(run, task, test, train, found.digest)
    return found.info


def _head_facts(
    run: ModelProbe, task: Scored, test: PictureSource, train: PictureSource, digest: str
) -> dict[str, Any]:
    """What `saved.HeadFacts` says of them."""
    example = next(iter(run.heads.values()))
    there = {layer for layer, _ in run.heads}
    return {
        "task": task.name,
        "outputs": example.outputs,
        "width": example.width,
        "batch_norm": example.batch_norm,
        "classes": tuple(test.mask_classes) if task.name == "segmentation" else (),
        "depth_range": task.bounds if isinstance(task, Depth) else None,
        "model": run.backbone.label,
        "digest": digest,
        "trained_on": train.spec,
        "learning_rates": {layer: rates for layer, rates in run.facts["learning_rates"].items() if int(layer) in there},
    }
