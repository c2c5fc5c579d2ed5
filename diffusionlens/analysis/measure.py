"""One pass over the pictures per model, feeding every diagnostic at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import torch

from diffusionlens.analysis.device import refuse_too_large, resolve_device
from diffusionlens.analysis.diagnostic import Context, Diagnostic, LeftOut, evenly_spaced
from diffusionlens.analysis.explorer import Explorer, refuse_too_many
from diffusionlens.analysis.outcome import manifest_of, material_of, per_image_of, table_of
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.registry import DIAGNOSTICS, make
from diffusionlens.analysis.run import Measurement, Run, Settings
from diffusionlens.capture import AttentionBlock, Trace, capture
from diffusionlens.data.batches import load_batches
from diffusionlens.data.sample import Batch, PictureSource, Sample
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.errors import InputError
from diffusionlens.material import SamplePicture
from diffusionlens.memory import enough_memory
from diffusionlens.models.backbone import Backbone
from diffusionlens.per_image import PerImage

Progress = Callable[[str, int, int], None]
"""Called with (what is going on, pictures done, pictures in all)."""

SAMPLE_PICTURES = 6
_MANY_PATCHES = 2000  # from here on one picture with its attention maps takes seconds


def measure(
    backbones: Sequence[Backbone],
    source: PictureSource,
    settings: Settings,
    progress: Progress = lambda *_: None,
    processes: Processes | None = None,
) -> Measurement | None:
    """Measures every model on the pictures of `source`.

    Returns:
        The measurement; None in processes other than the first.

    Raises:
        InputError: a model, the pictures or a setting can't be used.
    """
    processes = processes or Processes()
    started = time.monotonic()
    with processes.together():
        refuse_doubles([backbone.label for backbone in backbones])
        indices = chosen_pictures(len(source), settings.images)
        if len(indices) < processes.count:
            raise InputError(
                f"{source.label} gives {len(indices)} pictures to {processes.count} processes; use fewer processes"
            )
        device = resolve_device(settings.device, processes)
        runs = _prepare_all(backbones, source, settings, indices, device, progress)
    for run in runs:
        with processes.together():
            _pass(run, source, settings, indices, device, progress, processes)
        for diagnostic in run.diagnostics:
            processes.merge(diagnostic)
        _gather_extras(run, processes)
        with processes.together():
            if processes.rank == 0 and len(run.skipped) == len(indices):
                first = f"{run.skipped[0].file}: {run.skipped[0].reason}"
                raise InputError(
                    f"nothing could be measured: none of the {len(indices)} pictures is readable (first: {first})"
                )
    with processes.together(), enough_memory("the tables", "give fewer --images or --layers"):
        if processes.rank != 0:
            return None
        results = pd.concat([table_of(run, source) for run in runs], ignore_index=True)
        if results.empty:
            raise InputError(_nothing(runs, source))
        manifest = manifest_of(runs, source, settings, indices, device, processes, time.monotonic() - started)
        pictures = PerImage.joined([per_image_of(run, source) for run in runs])
        return Measurement(results, pictures, material_of(runs), manifest)


def _nothing(runs: Sequence[Run], source: PictureSource) -> str:
    reasons = "; ".join(f"{left.what}: {left.reason}" for run in runs for left in run.left_out)
    return f"nothing could be measured on {source.label} ({reasons or 'no picture had what the analyses need'})"


def refuse_doubles(labels: Sequence[str]) -> None:
    """Refuses no model at all, and two of one name."""
    if not labels:
        raise InputError("no model was given; wanted one or more MODEL")
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two models are called '{label}'; tell them apart as a=SPEC b=SPEC")


def chosen_pictures(available: int, wanted: int | None) -> list[int]:
    """Indices of the pictures to measure: all, or `wanted` of them evenly spaced, so that every class stays in."""
    if wanted is not None and wanted < 1:
        raise InputError(f"--images {wanted}; wanted a whole number from 1")
    return evenly_spaced(range(available), available if wanted is None else wanted)


def parse_layers(text: str, depth: int, model: str, asked: str = "--layers") -> tuple[int, ...]:
    """`all` is 0..depth, `last` is depth, otherwise numbers separated by commas; negative ones count from the end.

    Args:
        model: whose layers, for the message. asked: where `text` stands, for the message.

    Raises:
        InputError: not of that form, or a layer that the model does not have.
    """
    if text == "all":
        return tuple(range(depth + 1))
    if text == "last":
        return (depth,)
    layers = set()
    for part in text.split(","):
        try:
            layer = int(part)
        except ValueError:
            raise InputError(f"{asked} '{text}' is not understood; wanted all, last, or numbers like 0,6,12") from None
        if not -depth - 1 <= layer <= depth:
            raise InputError(
                f"{asked} {layer}: the model {model} has the layers 0 (embedding) to {depth}; stay between these, or count "
                f"from its last layer with -1, -2, ..."
            )
        layers.add(layer % (depth + 1))
    return tuple(sorted(layers))


def _prepare_all(
    backbones: Sequence[Backbone],
    source: PictureSource,
    settings: Settings,
    indices: list[int],
    device: torch.device,
    progress: Progress,
) -> list[Run]:
    """Prepares every model before the first is measured, so that what the last one lacks is known at once."""
    runs = []
    for backbone in backbones:
        with enough_memory(f"{backbone.label} on {device}", "give a smaller --size or another --device"):
            attention = any("attention" in DIAGNOSTICS[name].needs for name in settings.analyses)
            refuse_too_large(backbone, settings.size or backbone.default_size(), device, attention=attention)
            with _said(backbone, settings.size or backbone.default_size(), progress):
                runs.append(_prepare(backbone.to(device), source, settings, indices))
            backbone.to(torch.device("cpu"))
    if not any(run.diagnostics for run in runs):
        raise InputError(_nothing(runs, source))
    refuse_too_many([explorer for run in runs if (explorer := run.find(Explorer)) is not None])
    return runs


@contextmanager
def _said(backbone: Backbone, size: tuple[int, int], progress: Progress) -> Iterator[None]:
    """Says that a model is tried on an empty picture, where that alone takes a while."""
    patches = (size[0] // backbone.patch_size[0]) * (size[1] // backbone.patch_size[1])
    what = f"{backbone.label}: an empty picture of {size[0]} x {size[1]} px, to try the model"
    slow = patches >= _MANY_PATCHES
    if slow:
        progress(what, 0, 1)
    yield
    if slow:
        progress(what, 1, 1)


def _prepare(backbone: Backbone, source: PictureSource, settings: Settings, indices: list[int]) -> Run:
    """Sizes the model and makes the diagnostics that it and the pictures allow."""
    backbone.set_size(settings.size or backbone.default_size())
    transform = _transform(backbone, settings)
    context = Context(
        backbone=backbone,
        layers=parse_layers(settings.layers, backbone.depth, backbone.label),
        indices=tuple(indices),
        provides=source.provides,
        seed=settings.seed,
        samples=tuple(evenly_spaced(indices, SAMPLE_PICTURES)),
        picture=lambda index: transform(source.open(index), index),
    )
    device = next(backbone.model.parameters()).device
    blank = torch.zeros(1, 3, *backbone.size, device=device)
    capture(backbone, blank)  # refuses what has no single token grid, before a thousand pictures are read
    run = Run(backbone, context, [], [])
    for name in settings.analyses:
        made = make(name, context, settings.options[name])
        if isinstance(made, LeftOut):
            run.left_out.append(made)
            continue
        if made.watches and (reason := _unobservable(backbone, blank)) is not None:
            lost = made.without_attention()
            run.left_out.append(LeftOut(lost or name, reason))
            if lost is None:
                continue
        run.diagnostics.append(made)
        run.left_out += made.left_out
    return run


def _transform(backbone: Backbone, settings: Settings) -> FitTransform:
    preparing = backbone.preprocessing
    return FitTransform(backbone.size, preparing.mean, preparing.std, settings.fit, preparing.interpolation)


def _unobservable(backbone: Backbone, blank: torch.Tensor) -> str | None:
    try:
        capture(backbone, blank, [lambda _: None])
    except InputError as error:
        return str(error)
    return None


def _pass(
    run: Run,
    source: PictureSource,
    settings: Settings,
    indices: list[int],
    device: torch.device,
    progress: Progress,
    processes: Processes,
) -> None:
    """The one pass: every batch goes through the model once, and to every diagnostic."""
    backbone, mine = run.backbone, indices[processes.rank :: processes.count]
    transform = _transform(backbone, settings)
    batch_size = settings.batch_size or (64 if device.type == "cuda" else 8)
    layers = needed_layers(run.context)
    done = 0
    doing = f"{min(batch_size, len(mine))} pictures of {' x '.join(map(str, backbone.size))} at a time on {device}"
    with enough_memory(doing, "give a smaller --batch-size, or a smaller --size"):
        backbone.to(device)
        what = going_on(backbone, min(batch_size, len(mine)))
        progress(what, 0, len(mine))
        for batch, skipped in load_batches(source, transform, mine, batch_size, settings.workers):
            processes.stop_with_others()
            run.skipped += skipped
            if batch is not None:
                feed(run.diagnostics, backbone, batch, layers, device)
                _keep_samples(run, batch, source)
            done += len(skipped) + (0 if batch is None else len(batch))
            progress(what, done, len(mine))
        for diagnostic in run.diagnostics:
            diagnostic.finish()
        backbone.to(torch.device("cpu"))


def going_on(backbone: Backbone, together: int, doing: str = "pictures") -> str:
    """What progress says of a pass: until its first batch is through, which large pictures make long, there is nothing else."""
    return f"{backbone.label}: {doing} at {' x '.join(map(str, backbone.size))} px, {together} at a time"


def needed_layers(context: Context) -> set[int]:
    """The layers to capture: those to report, their predecessors (inputs of first norms), and layer 0."""
    return {0} | set(context.layers) | {layer - 1 for layer in context.layers if layer > 0}


def feed(
    diagnostics: Sequence[Diagnostic], backbone: Backbone, batch: Batch, layers: set[int], device: torch.device
) -> Trace:
    """Runs one batch through the model and into the diagnostics, with the changed pictures that they ask for."""
    watching = [diagnostic for diagnostic in diagnostics if diagnostic.watches]

    def observe(block: AttentionBlock) -> None:
        for diagnostic in watching:
            diagnostic.observe(block, batch)

    trace = capture(backbone, batch.images.to(device), [observe] if watching else [], layers)
    for diagnostic in diagnostics:
        changed = {}
        for name, images in diagnostic.changed_pictures(batch).items():
            # By the same kernels as the batch itself: rounding must not pass for an effect of the change.
            changed[name] = capture(backbone, images.to(device), [lambda _: None] if watching else [], layers)
            diagnostic.extra_forwards += len(images)
        with torch.inference_mode():
            diagnostic.update(replace(trace, changed=changed) if changed else trace, batch)
    return trace


def _keep_samples(run: Run, batch: Batch, source: PictureSource) -> None:
    for sample in batch.samples:
        run.notes += [(sample.name, note) for note in sample.notes]
        if sample.index in run.context.samples:
            run.samples[sample.index] = _as_seen(sample, run.backbone, source)


def _as_seen(sample: Sample, backbone: Backbone, source: PictureSource) -> SamplePicture:
    known = sample.label is not None and 0 <= sample.label < len(source.classes)
    label = source.classes[sample.label] if known else None  # type: ignore[index]
    image = backbone.preprocessing.visible(sample.image)
    return SamplePicture(sample.name, image, sample.boxes.numpy().copy(), label)


def _gather_extras(run: Run, processes: Processes) -> None:
    """Brings samples, what diagnostics keep of single pictures, notes and skipped pictures to the first process."""
    kept = [diagnostic.kept for diagnostic in run.diagnostics]
    parts = processes.gather((run.skipped, run.notes, run.samples, kept))
    run.skipped = sorted((entry for part in parts for entry in part[0]), key=lambda entry: entry.index)
    run.notes = sorted(entry for part in parts for entry in part[1])
    for part in parts:
        run.samples.update(part[2])
        for diagnostic, theirs in zip(run.diagnostics, part[3], strict=True):
            diagnostic.kept.update(theirs)
