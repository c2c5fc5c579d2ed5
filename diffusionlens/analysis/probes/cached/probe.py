"""One model probed from cached tokens: every picture goes through it once, and heads are trained layer by layer."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.cached.store import StoreRequest, TokenStore, model_digest, open_store
from diffusionlens.analysis.probes.heads.kinds import partners, usable_kinds
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.saved import SavedHeads
from diffusionlens.analysis.probes.heads.saved import left_out as left_out_of
from diffusionlens.analysis.probes.heads.training import (
    DenseTask,
    Scored,
    Stop,
    best_rates,
    evaluate_dense,
    grid_outputs,
    only_rate,
    split_held_out,
    train_dense,
)
from diffusionlens.analysis.probes.outcomes.outcome import absent_classes
from diffusionlens.analysis.probes.outcomes.scores import LayerScores
from diffusionlens.analysis.probes.outcomes.shown import SHOWN_KINDS, evenly_spaced, probed_picture
from diffusionlens.analysis.probes.run import Found, ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import ClassificationRecipe, DenseRecipe
from diffusionlens.analysis.probes.tasks.classification import classify_layer
from diffusionlens.analysis.probes.tasks.labelled import nothing_to_learn, refuse_sizes
from diffusionlens.analysis.processes import Processes
from diffusionlens.data.sample import PictureSource
from diffusionlens.data.transforms.fit import Fit
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
    saved: SavedHeads | None,
    cache: Path,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> Found:
    """This process's layers of `run`; heads that are `saved` are scored as they are."""
    started = time.monotonic()
    stores = _stores(run, test, train, settings, cache, device, progress, processes)
    forward_seconds = time.monotonic() - started
    kinds, left_out = usable_kinds(
        run.kinds, has_cls=run.backbone.has_cls, pictures=min(len(store) for store in stores)
    )
    run.left_out += [LeftOut(kind, reason) for kind, reason in left_out.items()]
    if not kinds:
        raise InputError(f"{run.backbone.label}: none of the token kinds can be had ({'; '.join(left_out.values())})")
    absent = absent_classes(stores[0], test) if settings.task == "segmentation" else []
    dense = cast(DenseTask, task)  # where it is not classification
    info: dict[str, Any] = {"test": stores[0].meta, "absent": absent}
    learn: list[int] = []
    held_out: list[int] = []
    with processes.together():
        if train is not None:
            info["train"] = stores[1].meta
        if settings.task != "classification":
            for store in stores:
                refuse_sizes(task, (place[2:] for place in store.places))
            if train is not None:
                learn, held_out, info["train"] = _parts(dense, stores[1], train.label, settings)
    found = Found(
        names=stores[0].names,
        info=info,
        facts={
            "backbone_forwards": sum(store.forwards for store in stores),
            "token_bytes": sum(store.bytes for store in stores),
            "forward_seconds": round(forward_seconds, 2),
        },
        digest=model_digest(run.backbone),
    )
    mine = run.layers[processes.rank :: processes.count]
    what = f"{run.backbone.label}: heads by layer"
    with processes.together(), enough_memory("the heads", "give fewer --layers, --tokens or rates"):
        progress(what, 0, len(mine))
        for done, layer in enumerate(mine, start=1):
            if isinstance(settings.recipe, ClassificationRecipe):
                scored, found.rates[layer], reasons, gone = classify_layer(
                    stores[1], stores[0], layer, kinds, settings.recipe, settings.seeds, settings.seed,
                    len(test.classes), device, processes.stop_with_others,
                )  # fmt: skip
                found.left_out += [LeftOut(name, reason) for name, reason in reasons.items() if layer == run.layers[0]]
                found.left_out += gone
                found.scored += [(layer, own, scores) for own, scores in scored]
            else:
                if saved is not None:
                    heads, found.rates[layer] = saved.of_layer(layer, kinds)
                else:
                    heads, found.rates[layer] = _trained(
                        stores[1], (learn, held_out), dense, layer, kinds, settings, device, processes.stop_with_others
                    )
                there = next(iter(heads.values())).kinds if heads else ()
                found.left_out += left_out_of(kinds, there, layer, settings.recipe.rates, saved)
                if heads:
                    sums = evaluate_dense(
                        dense, list(heads.values()), stores[0], range(len(stores[0])), layer, settings.seed,
                        processes.stop_with_others,
                    )[:, :, :, 0]  # fmt: skip
                    found.scored.append((layer, task, LayerScores(layer, there, sums.double().numpy())))
                    found.heads |= heads
                    if layer == run.layers[-1]:
                        found.shown = _shown(stores[0], dense, heads, layer, there, test, settings.seed)
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


def _parts(
    task: DenseTask, store: TokenStore, label: str, settings: ProbeSettings
) -> tuple[list[int], list[int], dict[str, Any]]:
    """The pictures to learn from, those held out, and what the manifest says: pictures without anything labelled are neither."""
    there = [place for place in range(len(store)) if task.labelled(store.target(place))]
    if not there:
        raise nothing_to_learn(task, label)
    without = sorted(set(range(len(store))) - set(there))
    meta = store.meta | {
        "names": [store.names[place] for place in there],
        "skipped": store.meta["skipped"] + [[store.names[place], "nothing labelled"] for place in without],
    }
    learn, held_out = split_held_out(len(there), settings.recipe, settings.seed)
    return [there[place] for place in learn], [there[place] for place in held_out], meta


def _trained(
    store: TokenStore,
    parts: tuple[Sequence[int], Sequence[int]],
    task: DenseTask,
    layer: int,
    kinds: tuple[str, ...],
    settings: ProbeSettings,
    device: torch.device,
    stop: Stop,
) -> tuple[dict[tuple[int, int], LayerHeads], dict[str, float]]:
    """Heads of a layer, one a seed, of the kinds that have not diverged, and their rates."""
    recipe, (learn, held_out) = settings.recipe, parts
    assert isinstance(recipe, DenseRecipe)
    heads = [
        train_dense(task, store, learn, layer, kinds, recipe, settings.seed + number, device, stop)
        for number in range(settings.seeds)
    ]
    finite = torch.stack([own.finite() for own in heads]).all(0)
    chosen = only_rate(finite)
    if held_out:
        chosen = best_rates(task, evaluate_dense(task, heads, store, held_out, layer, settings.seed, stop), finite)
    rates = {kind: recipe.rates[place] for kind, place in zip(kinds, chosen, strict=True) if place is not None}
    if not rates:
        return {}, {}
    return {(layer, number): own.select(chosen) for number, own in enumerate(heads)}, rates


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
