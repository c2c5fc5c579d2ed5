"""One model probed from cached tokens: every picture goes through it once, and heads are trained layer by layer."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.classification import classify_layer
from diffusionlens.analysis.probes.heads import LayerHeads
from diffusionlens.analysis.probes.kinds import partners, usable_kinds
from diffusionlens.analysis.probes.outcome import absent_classes
from diffusionlens.analysis.probes.recipe import ClassificationRecipe, DenseRecipe
from diffusionlens.analysis.probes.run import Found, ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.saved import SavedHeads, take_heads
from diffusionlens.analysis.probes.scores import LayerScores
from diffusionlens.analysis.probes.shown import SHOWN_KINDS, evenly_spaced, probed_picture
from diffusionlens.analysis.probes.store import StoreRequest, TokenStore, model_digest, open_store
from diffusionlens.analysis.probes.training import (
    DenseTask,
    Scored,
    best_rates,
    evaluate_dense,
    grid_outputs,
    split_held_out,
    train_dense,
)
from diffusionlens.analysis.processes import Processes
from diffusionlens.data.sample import PictureSource
from diffusionlens.data.transform import Fit
from diffusionlens.errors import InputError
from diffusionlens.material import ProbedPicture
from diffusionlens.memory import enough_memory

_TARGETS = {"segmentation": "mask", "depth": "depth", "classification": "label"}


def probe_cached(
    run: ModelProbe,
    task: Scored,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    cache: Path,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> Found:
    """This process's layers of `run`, whose `layers` become those of saved heads where such are given."""
    started = time.monotonic()
    stores = _stores(run, test, train, settings, cache, device, progress, processes)
    forward_seconds = time.monotonic() - started
    kinds, left_out = usable_kinds(
        settings.kinds, has_cls=run.backbone.has_cls, pictures=min(len(store) for store in stores)
    )
    run.left_out += [LeftOut(kind, reason) for kind, reason in left_out.items()]
    if not kinds:
        raise InputError(f"{run.backbone.label}: none of the token kinds can be had ({'; '.join(left_out.values())})")
    digest = model_digest(run.backbone)
    saved: SavedHeads | None = None
    if settings.heads is not None:
        with processes.together():
            saved, kinds = take_heads(settings.heads, run, task, test, settings, digest, device)
    absent = absent_classes(stores[0], test) if settings.task == "segmentation" else []
    dense = cast(DenseTask, task)  # where it is not classification
    found = Found(
        names=stores[0].names,
        info={"train": stores[-1].meta, "test": stores[0].meta, "absent": absent},
        facts={
            "backbone_forwards": sum(store.forwards for store in stores),
            "token_bytes": sum(store.bytes for store in stores),
            "forward_seconds": round(forward_seconds, 2),
        },
        digest=digest,
    )
    mine = run.layers[processes.rank :: processes.count]
    what = f"{run.backbone.label}: heads by layer"
    with processes.together(), enough_memory("the heads", "give fewer --layers, --tokens or rates"):
        progress(what, 0, len(mine))
        for done, layer in enumerate(mine, start=1):
            if isinstance(settings.recipe, ClassificationRecipe):
                scored, found.rates[layer], reasons = classify_layer(
                    stores[1], stores[0], layer, kinds, settings.recipe, settings.seeds, settings.seed,
                    len(test.classes), device, processes.stop_with_others,
                )  # fmt: skip
                run.left_out += [LeftOut(name, reason) for name, reason in reasons.items() if layer == run.layers[0]]
                found.scored += [(layer, own, scores) for own, scores in scored]
            else:
                scores, found.rates[layer], heads = _dense_layer(
                    stores,
                    dense,
                    layer,
                    kinds,
                    settings,
                    saved,
                    device,
                    processes,
                )
                found.scored.append((layer, task, scores))
                found.heads |= heads
                if layer == run.layers[-1]:
                    found.shown = _shown(stores[0], dense, heads, layer, kinds, test, settings.seed)
            progress(what, done, len(mine))
    found.facts["head_seconds"] = round(time.monotonic() - started - forward_seconds, 2)
    for store in stores:
        store.close()
    return found


def _stores(
    run: ModelProbe,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    cache: Path,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> list[TokenStore]:
    """Of the test pictures, and of those to learn from unless there are heads already."""
    stores = []
    size = settings.batch_size or (64 if device.type == "cuda" else 8)
    with enough_memory(f"{size} pictures at a time on {device}", "give a smaller --batch-size or --size"):
        for source in (test,) if settings.heads is not None or train is None else (test, train):
            fit: Fit = "crop" if settings.task == "classification" else "squash"
            request = StoreRequest(
                source, range(len(source)), run.layers, fit, settings.task == "classification", _TARGETS[settings.task],
                size, settings.workers, device,
            )  # fmt: skip
            stores.append(open_store(run.backbone, request, cache, progress, processes))
    return stores


def _dense_layer(
    stores: Sequence[TokenStore],
    task: DenseTask,
    layer: int,
    kinds: tuple[str, ...],
    settings: ProbeSettings,
    saved: SavedHeads | None,
    device: torch.device,
    processes: Processes,
) -> tuple[LayerScores, dict[str, float], dict[tuple[int, int], LayerHeads]]:
    """Scores, rates and heads of a layer; saved heads are taken where there are some."""
    recipe, stop, test = settings.recipe, processes.stop_with_others, stores[0]
    assert isinstance(recipe, DenseRecipe)
    if saved is not None:
        taken, rates = saved.of_layer(layer)
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
    return LayerScores(layer, kinds, sums.double().numpy()), rates, taken


def _shown(
    store: TokenStore,
    task: DenseTask,
    heads: dict[tuple[int, int], LayerHeads],
    layer: int,
    kinds: tuple[str, ...],
    test: PictureSource,
    seed: int,
) -> list[ProbedPicture]:
    """Some test pictures with what the first seed's heads say."""
    first = heads[min(heads)]
    other = partners(len(store), seed)
    shown = []
    for place in evenly_spaced(len(store)):
        target = store.target(place)
        outputs = grid_outputs([first], store, place, other[place], layer)[0]
        maps = {
            kind: task.predict_map(outputs[:, :, kinds.index(kind), 0], (target.shape[0], target.shape[1]))
            for kind in SHOWN_KINDS
            if kind in kinds
        }
        classes = test.mask_classes if task.name == "segmentation" else ()
        shown.append(probed_picture(test.open(store.indices[place]), target, maps, layer, classes))
    return shown
