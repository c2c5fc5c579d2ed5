"""The published linear classifiers, DINO's and DINOv2's: on the CLS of the last blocks, with or without the mean patch."""

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.cached.store import model_digest
from diffusionlens.analysis.probes.heads.linear import DIVERGED
from diffusionlens.analysis.probes.heads.optimizer import SideBySide
from diffusionlens.analysis.probes.heads.training import batches, best_rates, diverged, only_rate, split_held_out
from diffusionlens.analysis.probes.outcomes.scores import LayerScores
from diffusionlens.analysis.probes.run import Found, ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import ProtocolRecipe
from diffusionlens.analysis.probes.streamed.training import Seen, StreamSettings, layer_tokens, meta_of
from diffusionlens.analysis.probes.tasks.classification import Classification
from diffusionlens.analysis.processes import Processes
from diffusionlens.data.batches import load_batches
from diffusionlens.data.sample import PictureSource, Transform
from diffusionlens.data.subset import Subset
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.data.transforms.random_resized_crops import RandomResizedCrops
from diffusionlens.errors import InputError
from diffusionlens.memory import enough_memory
from diffusionlens.models.backbone import Backbone

_CHUNKS = {"cuda": 128}
_CHUNK = 8  # pictures at a time on a CPU
Features = tuple[Tensor, Tensor, list[int]]
"""CLS of the last blocks, the last one first, and the last mean patch [B,blocks+1,D]; labels [B]; places."""


def input_names(recipe: ProtocolRecipe) -> tuple[str, ...]:
    """What a head reads, as column token says it: "cls blocks=4", "cls+mean blocks=1"."""
    return tuple(f"{pool} blocks={blocks}" for blocks in recipe.blocks for pool in recipe.pools)


def head_input(vectors: Tensor, name: str) -> Tensor:
    """[B,n] of `name` from [B,blocks+1,D], as DINOv2's create_linear_input: CLS of the last blocks, then the last mean patch."""
    pool, _, blocks = name.partition(" blocks=")
    cls = vectors[:, : int(blocks)]
    return torch.cat([cls, vectors[:, -1:]], 1).flatten(1) if pool == "cls+mean" else cls.flatten(1)


def refuse_blocks(backbone: Backbone, recipe: ProtocolRecipe, preset: str) -> None:
    """
    Raises:
        InputError: the model has not so many blocks, or no CLS.
    """
    if not backbone.has_cls or max(recipe.blocks) > backbone.depth:
        raise InputError(
            f"{backbone.label} has {backbone.depth} blocks and {'a' if backbone.has_cls else 'no'} CLS token, and preset "
            f"{preset} reads the CLS of {max(recipe.blocks)}; give --preset fast"
        )


def probe_protocol(
    run: ModelProbe,
    test: PictureSource,
    train: PictureSource,
    settings: ProbeSettings,
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> Found:
    """This process's inputs of `recipe`; every process makes the same stream for its own."""
    backbone, recipe = run.backbone, settings.recipe
    assert isinstance(recipe, ProtocolRecipe)
    chunk = settings.batch_size or _CHUNKS.get(device.type, _CHUNK)
    stream = StreamSettings(device, chunk, settings.workers, progress, processes.stop_with_others)
    started = time.monotonic()
    seen = {"learned": Seen(), "held out": Seen(), "scored": Seen()}
    found = Found([], {}, {}, model_digest(backbone))
    names = input_names(recipe)[processes.rank :: processes.count]
    with processes.together(), enough_memory(f"{chunk} pictures at a time on {device}", "give a smaller --batch-size"):
        if names:
            reader = _Reader(backbone, max(recipe.blocks), stream)
            heads, rates, found.left_out = _trained(reader, recipe, names, train, settings, len(test.classes), seen)
            names = tuple(rates)
            query = reader.all(test, range(len(test)), seen["scored"])
            if not len(query[1]):
                raise InputError(f"{test.label} has no readable picture with a label; give other --data")
            task = Classification("linear_top1")
            found.names = [test.name(place) for place in query[2]]
            layer = backbone.depth
            found.rates = {layer: rates}
            if names:
                right = torch.stack([_right(own, query, names)[0] for own in heads])
                found.scored = [(layer, task, LayerScores(layer, names, _sums(right)[:, :, :, 0]))]
        backbone.to(torch.device("cpu"))
    there = [train.name(index) for index in range(len(train))]
    learned = Seen(skipped=seen["learned"].skipped | seen["held out"].skipped, notes=seen["learned"].notes)
    found.info = {
        "train": meta_of([name for name in there if name not in learned.skipped], learned),
        "test": meta_of(found.names, seen["scored"]),
        "absent": [],
    }
    found.facts = {
        "backbone_forwards": sum(part.forwards for part in seen.values()),
        "forwards": {name: part.forwards for name, part in seen.items()},
        "head_seconds": round(time.monotonic() - started, 2),
    }
    return found


class _Reader:
    """Pictures to the vectors that heads read."""

    def __init__(self, backbone: Backbone, blocks: int, stream: StreamSettings) -> None:
        self.backbone, self.stream = backbone, stream
        self.layers = [backbone.depth - place for place in range(blocks)]
        backbone.to(stream.device)
        preparing = backbone.preprocessing
        self.whole = FitTransform(backbone.size, preparing.mean, preparing.std, "crop", preparing.interpolation)

    def batches(
        self, source: PictureSource, transform: Transform, size: int, what: str, seen: Seen
    ) -> Iterator[Features]:
        """The labelled pictures of a source in batches of `size`."""
        total = -(-len(source) // size)
        self.stream.progress(what, 0, total)
        loaded = load_batches(source, transform, range(len(source)), size, self.stream.workers)
        for done, (batch, skipped) in enumerate(loaded, start=1):
            self.stream.stop()
            seen.skipped |= {source.name(entry.index): (entry.file, entry.reason) for entry in skipped}
            samples = [] if batch is None else batch.samples
            seen.skipped |= {one.name: (one.name, "no label") for one in samples if one.label is None}
            seen.notes |= {(one.name, note) for one in samples for note in one.notes}
            kept = [place for place, one in enumerate(samples) if one.label is not None]
            if batch is not None and kept:
                tokens = layer_tokens(self.backbone, batch.images[kept], self.layers, self.stream)
                seen.forwards += len(kept)
                vectors = [tokens[layer][0] for layer in self.layers]
                vectors.append(tokens[self.layers[0]][1].mean((1, 2)))
                labels = torch.tensor([samples[place].label for place in kept])
                stacked = torch.stack([one for one in vectors if one is not None], 1)
                yield stacked, labels.to(stacked.device), [samples[place].index for place in kept]
            self.stream.progress(what, done, total)

    def all(self, source: PictureSource, indices: Sequence[int], seen: Seen) -> Features:
        """Vectors, labels and places of pictures seen as they are scored: centre crops."""
        part = Subset(source, indices)
        what = f"{self.backbone.label}: {len(part)} pictures of {source.label}"
        found = list(self.batches(part, self.whole, self.stream.chunk, what, seen))
        if not found:
            return torch.zeros(0, len(self.layers) + 1, self.backbone.width), torch.zeros(0, dtype=torch.int64), []
        vectors, labels = (torch.cat([entry[place] for entry in found]) for place in range(2))  # type: ignore[misc]
        return vectors, labels, [indices[place] for entry in found for place in entry[2]]


def _trained(
    reader: _Reader,
    recipe: ProtocolRecipe,
    names: Sequence[str],
    train: PictureSource,
    settings: ProbeSettings,
    classes: int,
    seen: Mapping[str, Seen],
) -> tuple[list[dict[str, Tensor]], dict[str, float], list[LeftOut]]:
    """Heads of every seed at their chosen rates, these, and the inputs whose heads all diverged."""
    learn, held_out = split_held_out(len(train), recipe, settings.seed)
    bank = None if recipe.augment else reader.all(train, learn, seen["learned"])
    if bank is not None and not len(bank[1]):
        raise _nothing_readable()
    heads = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        generator = torch.Generator().manual_seed(seed)
        count = len(learn) if bank is None else len(bank[1])
        size = min(recipe.batch_size, count)
        steps = recipe.steps(count)
        order = batches(count, size, steps, generator)
        if bank is None:
            crops = RandomResizedCrops(reader.whole.size, reader.whole.mean, reader.whole.std, seed)
            stream = Subset(train, [learn[place] for batch in order for place in batch])
            what = f"{reader.backbone.label}: steps of seed {seed}"
            fed = reader.batches(stream, crops, size, what, seen["learned"])
        else:
            fed = ((bank[0][places], bank[1][places], places) for places in order)
        heads.append(_learn(fed, names, recipe, seed, classes, size, steps, reader))
    finite = torch.stack([_finite(own, len(names)) for own in heads]).all(0)
    chosen = only_rate(finite)
    if held_out:
        query = reader.all(train, held_out, seen["held out"])
        if not len(query[1]):
            raise InputError(
                f"{train.label} has no readable picture among those held out; give one rate with --set rates"
            )
        right = torch.stack([torch.stack([*_right(own, query, names)]) for own in heads])  # [S,R,K,P]
        task = Classification("linear_top1")
        chosen = best_rates(task, torch.from_numpy(_sums(right.transpose(1, 2))), finite)
    there = [(place, rate) for place, rate in enumerate(chosen) if rate is not None]
    taken = [
        {
            f"{part}{number}": own[f"{part}{place}"][:, rate : rate + 1]
            for number, (place, rate) in enumerate(there)
            for part in ("weight", "bias")
        }
        for own in heads
    ]
    layer = reader.backbone.depth
    left_out = [
        LeftOut(*diverged(name, layer, recipe.rates)) for name, rate in zip(names, chosen, strict=True) if rate is None
    ]
    return taken, {names[place]: recipe.rates[rate] for place, rate in there}, left_out


def _learn(
    fed: Iterator[Features],
    names: Sequence[str],
    recipe: ProtocolRecipe,
    seed: int,
    classes: int,
    size: int,
    steps: int,
    reader: _Reader,
) -> dict[str, Tensor]:
    """Heads [1,R,classes,n] of every input and rate: normal 0.01, SGD with momentum, rates times batch / 256."""
    generator = torch.Generator().manual_seed(seed)
    device, width = reader.stream.device, reader.backbone.width
    start = 0.01 * torch.randn(classes, (len(reader.layers) + 1) * width, generator=generator)
    parameters: dict[str, Tensor] = {}
    for place, name in enumerate(names):
        length = head_input(torch.zeros(1, len(reader.layers) + 1, width), name).shape[1]
        weight = start[:, :length].expand(1, len(recipe.rates), classes, length)
        parameters[f"weight{place}"] = weight.clone().to(device).requires_grad_()
        bias = torch.zeros(1, len(recipe.rates), classes, device=device)
        parameters[f"bias{place}"] = bias.requires_grad_()
    rates = torch.tensor(recipe.rates, device=device) * size / 256
    optimizer = SideBySide(parameters, rates, recipe.weight_decay, optimizer=recipe.optimizer)
    counted = recipe.model_copy(update={"iterations": steps})
    step = None
    for step, (vectors, labels, _) in enumerate(fed):
        reader.stream.stop()
        losses = []
        for place, name in enumerate(names):
            logits = _logits(parameters, place, head_input(vectors, name))
            wanted = labels[:, None].expand(-1, len(recipe.rates))
            whole = functional.cross_entropy(logits.reshape(-1, classes), wanted.reshape(-1), reduction="sum")
            losses.append(whole / len(labels))
        optimizer.step(torch.stack(losses).sum(), counted.factor(step))
    if step is None:
        raise _nothing_readable()
    return {name: value.detach() for name, value in parameters.items()}


def _nothing_readable() -> InputError:
    return InputError("no training picture is readable and has a label; give other --train")


def _finite(heads: Mapping[str, Tensor], inputs: int) -> Tensor:
    """[K,R], see `heads.linear.LayerHeads.finite`."""
    parts = (
        torch.cat([heads[f"{part}{place}"][0].flatten(1) for part in ("weight", "bias")], 1) for place in range(inputs)
    )
    return torch.stack([(own.abs() < DIVERGED).all(1).cpu() for own in parts])


def _logits(parameters: Mapping[str, Tensor], place: int, inputs: Tensor) -> Tensor:
    """[B,R,classes] of the heads of input number `place`."""
    weight, bias = parameters[f"weight{place}"][0], parameters[f"bias{place}"][0]
    return (inputs @ weight.flatten(0, 1).T).unflatten(1, weight.shape[:2]) + bias


def _right(heads: Mapping[str, Tensor], query: Features, names: Sequence[str]) -> Tensor:
    """[R,K,P]: whether every rate's and input's head names the label."""
    vectors, labels, _ = query
    found = [_logits(heads, place, head_input(vectors, name)).argmax(-1) for place, name in enumerate(names)]
    return (torch.stack(found) == labels[None, :, None]).permute(2, 0, 1)


def _sums(right: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Right or wrong [S,K,(R,)P] to sums [S,P,K,R,2]."""
    four = right if right.dim() == 4 else right[:, :, None]
    values = four.permute(0, 3, 1, 2).double().cpu().numpy()
    return np.stack([values, np.ones_like(values)], -1)
