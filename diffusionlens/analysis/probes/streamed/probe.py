"""One model probed from a stream of random crops: DINOv2's protocol. Every step's forward feeds the heads of all layers."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.cached.store import model_digest
from diffusionlens.analysis.probes.geometry.crops import Geometry, geometry_of
from diffusionlens.analysis.probes.heads.kinds import usable_kinds
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.saved import SavedHeads
from diffusionlens.analysis.probes.heads.saved import left_out as left_out_of
from diffusionlens.analysis.probes.heads.training import DenseTask, best_rates, only_rate, split_held_out
from diffusionlens.analysis.probes.outcomes.scores import LayerScores
from diffusionlens.analysis.probes.outcomes.shown import SHOWN_KINDS, evenly_spaced, probed_picture
from diffusionlens.analysis.probes.run import Found, ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import StreamedRecipe
from diffusionlens.analysis.probes.streamed.scores import StreamedSums, score_streamed, view_outputs, viewed
from diffusionlens.analysis.probes.streamed.training import Seen, StreamSettings, meta_of, train_streamed
from diffusionlens.analysis.probes.tasks.labelled import nothing_to_learn, some_labelled, usable
from diffusionlens.analysis.processes import Processes
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError
from diffusionlens.material import ProbedPicture
from diffusionlens.memory import enough_memory

_CHUNKS = {"cuda": 16}
_CHUNK = 2  # views at a time on a CPU


def probe_streamed(
    run: ModelProbe,
    task: DenseTask,
    test: PictureSource,
    train: PictureSource | None,
    settings: ProbeSettings,
    saved: SavedHeads | None,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> Found:
    """This process's layers of `run`. Every process makes the same stream for its own layers, so that their number changes
    nothing; every seed has a stream of its own."""
    backbone, recipe = run.backbone, settings.recipe
    assert isinstance(recipe, StreamedRecipe)
    chunk = settings.batch_size or _CHUNKS.get(device.type, _CHUNK)
    stream = StreamSettings(device, chunk, settings.workers, progress, processes.stop_with_others)
    started = time.monotonic()
    seen = {"learned": Seen(), "held out": Seen(), "scored": Seen()}
    rates: dict[int, dict[str, float]] = {}
    with processes.together(), enough_memory(f"{chunk} views at a time on {device}", "give a smaller --batch-size"):
        geometry = geometry_of(recipe, backbone, train, test)
        pictures = min(usable(source, 2) for source in (test, train) if source is not None)
        kinds, left_out = usable_kinds(run.kinds, has_cls=backbone.has_cls, pictures=pictures)
        run.left_out += [LeftOut(kind, reason) for kind, reason in left_out.items()]
        if not kinds:
            raise InputError(f"{backbone.label}: none of the token kinds can be had ({'; '.join(left_out.values())})")
        backbone.set_size(geometry.scored)
        digest = model_digest(backbone)
        mine = run.layers[processes.rank :: processes.count]
        if saved is not None:
            taken = {layer: saved.of_layer(layer, kinds) for layer in mine}
            heads = {layer: list(own.values()) for layer, (own, _) in taken.items() if own}
            rates = {layer: own for layer, (_, own) in taken.items()}
        else:
            assert train is not None
            heads, rates = _trained(run, task, train, mine, kinds, settings, geometry, stream, seen)
        gone = []
        for layer in mine:
            there = heads[layer][0].kinds if layer in heads else ()
            gone += left_out_of(kinds, there, layer, recipe.rates, saved)
        sums = StreamedSums()
        if heads:
            everything = range(len(test))
            backbone.to(device)
            sums = score_streamed(
                task, backbone, heads, test, everything, geometry.fit, settings.seed, stream, seen["scored"]
            )
            if not sums.indices:
                reason = next((": ".join(entry) for entry in seen["scored"].skipped.values()), "no picture")
                raise InputError(f"{test.label} has no picture to probe with (first: {reason})")
        trained_seconds = time.monotonic() - started
        info = _info(task, test, train, sums.names, sums.labels, seen)
        found = Found(sums.names, info, {}, digest, rates=rates, left_out=gone)
        for layer, own in heads.items():
            found.scored.append(
                (layer, task, LayerScores(layer, own[0].kinds, sums.sums[layer][:, :, :, 0].double().numpy()))
            )
            found.heads |= {(layer, seed): head for seed, head in enumerate(own)}
        if run.layers[-1] in heads:
            first = heads[run.layers[-1]][0]
            found.shown = _shown(run, task, first, first.kinds, test, sums, geometry, stream, settings.seed)
        backbone.to(torch.device("cpu"))
    found.facts = {
        "backbone_forwards": sum(part.forwards for part in seen.values()),
        "forwards": {name: part.forwards for name, part in seen.items()},
        "head_seconds": round(trained_seconds, 2),
    }
    return found


def _trained(
    run: ModelProbe,
    task: DenseTask,
    train: PictureSource,
    layers: Sequence[int],
    kinds: tuple[str, ...],
    settings: ProbeSettings,
    geometry: Geometry,
    stream: StreamSettings,
    seen: Mapping[str, Seen],
) -> tuple[dict[int, list[LayerHeads]], dict[int, dict[str, float]]]:
    """Heads of every layer (one a seed) at their chosen rates, and these."""
    recipe = settings.recipe
    assert isinstance(recipe, StreamedRecipe)
    if not layers:
        return {}, {}
    learn, held_out = split_held_out(len(train), recipe, settings.seed)
    if not some_labelled(task, train, learn):
        raise nothing_to_learn(task, train.label)
    by_seed = [
        train_streamed(
            task, run.backbone, train, learn, layers, kinds, recipe, geometry.crops(seed), geometry.padding, seed,
            stream, seen["learned"],
        )
        for seed in range(settings.seed, settings.seed + settings.seeds)
    ]  # fmt: skip
    heads = {layer: [own[layer] for own in by_seed] for layer in layers}
    finite = {layer: torch.stack([head.finite() for head in own]).all(0) for layer, own in heads.items()}
    chosen = {layer: only_rate(own) for layer, own in finite.items()}
    if held_out:
        sums = score_streamed(
            task, run.backbone, heads, train, held_out, geometry.fit, settings.seed, stream, seen["held out"]
        )
        if not sums.indices:
            raise InputError(
                f"{train.label} has no readable picture among those held out; give one rate with --set rates"
            )
        chosen = {layer: best_rates(task, own, finite[layer]) for layer, own in sums.sums.items()}
    rates = {
        layer: {kind: recipe.rates[place] for kind, place in zip(kinds, own, strict=True) if place is not None}
        for layer, own in chosen.items()
    }
    taken = {layer: [head.select(chosen[layer]) for head in own] for layer, own in heads.items() if rates[layer]}
    return taken, rates


def _info(
    task: DenseTask, test: PictureSource, train: PictureSource | None, names: Sequence[str], labels: set[int],
    seen: Mapping[str, Seen],
) -> dict[str, Any]:  # fmt: skip
    absent = [name for number, name in enumerate(test.mask_classes) if number not in labels]
    learned = Seen(skipped=seen["learned"].skipped | seen["held out"].skipped, notes=seen["learned"].notes)
    there = [] if train is None else [train.name(index) for index in range(len(train))]
    return {
        "train": meta_of(
            [name for name in there if name not in learned.skipped], learned
        ),  # not asked for without train
        "test": meta_of(names, seen["scored"]),
        "absent": absent if task.name == "segmentation" else [],
    }


def _shown(
    run: ModelProbe,
    task: DenseTask,
    head: LayerHeads,
    kinds: Sequence[str],
    test: PictureSource,
    sums: StreamedSums,
    geometry: Geometry,
    stream: StreamSettings,
    seed: int,
) -> list[ProbedPicture]:
    """Some test pictures with what the first seed's heads on the last layer say."""
    layer = run.layers[-1]
    chosen = [sums.indices[place] for place in evenly_spaced(len(sums.indices))]
    classes = test.mask_classes if task.name == "segmentation" else ()
    found: dict[int, ProbedPicture] = {}
    for one in viewed(run.backbone, [layer], test, chosen, geometry.fit, seed, stream, Seen()):
        outputs = view_outputs(head, one.tokens[layer])
        size = (one.target.shape[0], one.target.shape[1])
        maps = {
            kind: task.merged(outputs[:, :, :, kinds.index(kind), 0], one.views, size)
            for kind in SHOWN_KINDS
            if kind in kinds
        }
        found[one.index] = probed_picture(one.picture, one.target, maps, layer, classes)
    return [found[index] for index in sorted(found)]
