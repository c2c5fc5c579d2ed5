"""Heads that learn from a stream of random crops: one forward of the frozen model a batch, for all heads; nothing is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.probes.geometry.points import mix_at
from diffusionlens.analysis.probes.geometry.views import Padding
from diffusionlens.analysis.probes.heads.kinds import LayerTokens, with_partner
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.optimizer import SideBySide
from diffusionlens.analysis.probes.heads.training import DenseTask, Stop, batches, optimizer_of
from diffusionlens.analysis.probes.settings.recipe import StreamedRecipe
from diffusionlens.capture import capture
from diffusionlens.data.batches import load_batches
from diffusionlens.data.sample import PictureSource, Sample, Transform
from diffusionlens.data.subset import Subset
from diffusionlens.models.backbone import Backbone

NO_LABELS = "no mask or depth map"


@dataclass
class Seen:
    """What went through the model: `forwards` views of pictures; pictures that could not be used, name -> (file, reason); notes
    on annotations as (name, note)."""

    forwards: int = 0
    skipped: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: set[tuple[str, str]] = field(default_factory=set)


def meta_of(names: Sequence[str], seen: Seen) -> dict[str, Any]:
    """What the manifest says of a data set of which `names` were used."""
    return {
        "names": list(names),
        "skipped": [list(entry) for entry in sorted(seen.skipped.values())],
        "notes": [list(entry) for entry in sorted(seen.notes)],
    }


@dataclass(frozen=True)
class StreamSettings:
    """Where and how: `chunk` views go through the model at a time; `workers` processes read pictures."""

    device: torch.device
    chunk: int
    workers: int
    progress: Progress
    stop: Stop


def layer_tokens(
    backbone: Backbone, images: Tensor, layers: Sequence[int], settings: StreamSettings
) -> dict[int, tuple[Tensor | None, Tensor]]:
    """CLS [B,D] or None and patches [B,h,w,D] of every layer, of images [B,3,H,W] of the model's present size."""
    parts: dict[int, list[tuple[Tensor | None, Tensor]]] = {layer: [] for layer in layers}
    for images_now in images.split(settings.chunk):
        settings.stop()
        trace = capture(backbone, images_now.to(settings.device), layers=layers)
        for layer in layers:
            tokens = trace.tokens(layer)
            # what is made in inference mode can't take part in training; a copy can
            parts[layer].append((None if tokens.cls is None else tokens.cls.clone(), tokens.patches.clone()))
    joined: dict[int, tuple[Tensor | None, Tensor]] = {}
    for layer, found in parts.items():
        cls = [one for one, _ in found if one is not None]
        joined[layer] = (torch.cat(cls) if cls else None, torch.cat([patches for _, patches in found]))
    return joined


def train_streamed(
    task: DenseTask,
    backbone: Backbone,
    source: PictureSource,
    pictures: Sequence[int],
    layers: Sequence[int],
    kinds: Sequence[str],
    recipe: StreamedRecipe,
    crops: Transform,
    padding: Padding,
    seed: int,
    settings: StreamSettings,
    seen: Seen,
) -> dict[int, LayerHeads]:
    """Heads of every layer, kind and rate, from random crops of `pictures`; every epoch has another order.

    Args:
        crops: makes a training picture of size `padding.size`, by its place in the stream.
        seen: is added to.
    """
    backbone.set_size(padding.padded)
    backbone.to(settings.device)
    heads = {
        layer: LayerHeads(
            kinds, backbone.width, task.outputs, len(recipe.rates), seed,
            batch_norm=task.batch_norm, device=settings.device,
        )
        for layer in layers
    }  # fmt: skip
    optimizers = {layer: optimizer_of(own, recipe, getattr(recipe, "clip", None)) for layer, own in heads.items()}
    generator = torch.Generator().manual_seed(seed)
    order = batches(len(pictures), recipe.batch_size, recipe.iterations, generator)
    stream = Subset(source, [pictures[place] for batch in order for place in batch])
    what = f"{backbone.label}: steps of seed {seed}"
    settings.progress(what, 0, recipe.iterations)
    loaded = load_batches(stream, crops, range(len(stream)), recipe.batch_size, settings.workers)
    for step, (batch, skipped) in enumerate(loaded):
        settings.stop()
        seen.skipped |= {stream.name(entry.index): (entry.file, entry.reason) for entry in skipped}
        samples = [] if batch is None else batch.samples
        seen.notes |= {(sample.name, note) for sample in samples for note in sample.notes}
        places = [place for place, sample in enumerate(samples) if _target(sample) is not None]
        seen.skipped |= {one.name: (one.name, NO_LABELS) for one in samples if _target(one) is None}
        if batch is not None and places:
            found = layer_tokens(backbone, padding.pad(batch.images[places]), layers, settings)
            seen.forwards += len(places)
            targets = torch.stack([_target(samples[place]) for place in places])  # type: ignore[misc]
            _learn(task, found, heads, optimizers, targets, recipe, padding, step, generator)
        settings.progress(what, step + 1, recipe.iterations)
    return heads


def _target(sample: Sample) -> Tensor | None:
    return sample.mask if sample.mask is not None else sample.depth


def _learn(
    task: DenseTask,
    found: Mapping[int, tuple[Tensor | None, Tensor]],
    heads: Mapping[int, LayerHeads],
    optimizers: Mapping[int, SideBySide],
    targets: Tensor,
    recipe: StreamedRecipe,
    padding: Padding,
    step: int,
    generator: torch.Generator,
) -> None:
    """One step of every head."""
    grid = next(iter(found.values()))[1].shape[1:3]
    if not recipe.whole_map:
        rows, columns, labels = task.points(list(targets), (grid[0], grid[1]), generator)
        rows, columns = padding.shares(rows, columns)
    for layer, (cls, patches) in found.items():
        tokens = with_partner(cls, patches)
        if recipe.whole_map:
            loss = _map_losses(task, heads[layer], tokens, targets.to(patches.device), padding, step)
        else:
            mixed = mix_at(patches, rows.to(patches.device), columns.to(patches.device))
            outputs = heads[layer](tokens, mixed, training=True)
            loss = task.point_loss(outputs, labels.to(patches.device), step).sum()
        optimizers[layer].step(loss, recipe.factor(step))


def _map_losses(
    task: DenseTask, heads: LayerHeads, tokens: LayerTokens, targets: Tensor, padding: Padding, step: int
) -> Tensor:
    """A sum whose gradient is that of all heads' losses: pixels of one head at a time, so that memory holds one head's."""
    outputs = heads(tokens, tokens.patches.flatten(1, 2), training=True)
    plain = outputs.detach().unflatten(1, tokens.patches.shape[1:3])
    slopes = torch.zeros_like(plain)
    for kind in range(plain.shape[3]):
        for rate in range(plain.shape[4]):
            own = plain[:, :, :, kind, rate].clone().requires_grad_()
            loss = task.map_loss(own, targets, padding, step)
            slopes[:, :, :, kind, rate] = torch.autograd.grad(loss, own)[0]
    return (outputs * slopes.flatten(1, 2)).sum()
