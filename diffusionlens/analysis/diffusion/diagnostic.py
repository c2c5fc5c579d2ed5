"""`diffusion`: leakage, spread and provenance as one diagnostic, since they change the same pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Part
from diffusionlens.analysis.diffusion.background import RINGS, background, ring_masks, rings
from diffusionlens.analysis.diffusion.erase import boxed_pixels, erase
from diffusionlens.analysis.diffusion.leakage import Readings, leakage_series, mean_background, read_labels
from diffusionlens.analysis.diffusion.options import DiffusionOptions
from diffusionlens.analysis.diffusion.provenance import (
    REGIONS,
    attribute,
    chosen_patches,
    regions,
    shares,
)
from diffusionlens.analysis.diffusion.spread import find_donor, responses, ring_means
from diffusionlens.analysis.diffusion.swap import main_box, swap
from diffusionlens.analysis.intervals import none_differs
from diffusionlens.analysis.regions import object_patches
from diffusionlens.capture import Trace
from diffusionlens.data.sample import Batch, Sample
from diffusionlens.material import InterventionPicture, ProvenanceMap
from diffusionlens.results import Row

_REASONS = (
    "no object in the picture",
    "leakage: no label",
    "leakage: no background beyond a patch from the boxes",
    "spread: no object to swap, or one that fills the picture",
    "spread: no other picture's object of another label",
)
_SHOWN_MAPS = 3  # pictures whose attributions are shown
SPREADS = ("spread", "spread_object", "spread_picture")
"""The ratio, and the mean responses that it is the ratio of."""
KINDS = ("background", "object")
"""Whose provenance is measured: patches of the background and of objects."""


@dataclass
class _Plan:
    """What is done with the pictures of a batch: places of the pictures and, one for each, what `update` needs."""

    erased: list[int] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)
    swapped: list[int] = field(default_factory=list)
    rings: list[Tensor] = field(default_factory=list)
    changed: dict[str, list[Tensor]] = field(default_factory=lambda: {"erased": [], "swapped": [], "other": []})


class Diffusion(Diagnostic):
    """leakage, spread and provenance; see `docs/semantic_diffusion.md` for what they mean."""

    name = "diffusion"
    needs = frozenset({"boxes"})
    options_type = DiffusionOptions
    options: DiffusionOptions
    dropped: Tensor
    label: list[Tensor]
    label_index: list[Tensor]
    full: list[Tensor]
    erased: list[Tensor]

    def __init__(self, context: Context, options: DiffusionOptions) -> None:
        super().__init__(context, options)
        for state in ("label", "label_index", "full", "erased"):
            self.add_state(state, default=[], dist_reduce_fx="cat")
        self.add_state("dropped", default=torch.zeros(len(_REASONS), dtype=torch.int64), dist_reduce_fx="sum")
        has_cls = context.backbone.has_cls
        self.reads_labels = options.leakage and "labels" in context.provides
        self.swaps = options.spread and context.picture is not None and len(context.indices) > 1
        self.attributes = options.provenance != "none" and has_cls
        if options.leakage and not self.reads_labels:
            self.left_out.append(LeftOut("leakage", "the data has no labels"))
        if options.spread and not self.swaps:
            self.left_out.append(LeftOut("spread", "there is no other picture to take an object from"))
        if options.provenance != "none" and not has_cls:
            self.left_out.append(LeftOut("provenance", "the model has no CLS token"))
        self.unusable: LeftOut | None = None
        if not (self.reads_labels or self.swaps or self.attributes):
            self.unusable = LeftOut("diffusion", "none of leakage, spread and provenance can be had")
        # Leakage is also told against layer 0, reported or not.
        self._probed = tuple(sorted({0, *context.layers}))
        self._for_leakage = context.evenly_spaced(options.leakage_pictures)
        self._for_provenance = context.evenly_spaced(options.provenance_pictures)
        self._drawn = sorted(self._for_provenance)[:_SHOWN_MAPS]
        self._plan = _Plan()

    @property
    def provenance_layers(self) -> tuple[int, ...]:
        layers = self.context.layers
        return layers[-1:] if self.options.provenance_layers == "last" else layers

    @cached_property
    def columns(self) -> Sequence[Column]:
        return self._spread_columns + self._provenance_columns

    @cached_property
    def _spread_columns(self) -> list[Column]:
        if not self.swaps:
            return []
        return [Column(name, layer, token=ring) for name in SPREADS for layer in self.context.layers for ring in RINGS]

    @cached_property
    def _provenance_columns(self) -> list[Column]:
        if not self.attributes:
            return []
        columns = []
        for layer in self.provenance_layers:
            for kind in KINDS:
                columns += [Column(f"provenance_{region}", layer, token=kind) for region in REGIONS]
                columns += [Column(f"provenance_{region}_area", layer, token=kind) for region in REGIONS]
                columns.append(Column("provenance_gap", layer, token=kind))
        return columns

    def changed_pictures(self, batch: Batch) -> dict[str, Tensor]:
        """erased: every box filled; swapped: the main object exchanged; other: the picture that the object came from."""
        self._plan = plan = _Plan()
        for place, sample in enumerate(batch.samples):
            if len(sample.boxes) == 0:
                self._drop("no object in the picture")
                continue
            if self.reads_labels and sample.index in self._for_leakage:
                self._plan_erasing(plan, place, sample)
            if self.swaps:
                self._plan_swap(plan, place, sample)
        return {name: torch.stack(images) for name, images in plan.changed.items() if images}

    def _plan_erasing(self, plan: _Plan, place: int, sample: Sample) -> None:
        mask = background(sample, self.context.grid, self.context.backbone.patch_size)
        if sample.label is None:
            self._drop("leakage: no label")
        elif not mask.any():
            self._drop("leakage: no background beyond a patch from the boxes")
        else:
            plan.erased.append(place)
            plan.masks.append(mask)
            plan.changed["erased"].append(erase(sample.image, sample.boxes, self.options.fill))

    def _plan_swap(self, plan: _Plan, place: int, sample: Sample) -> None:
        box = main_box(sample)
        if box is None or boxed_pixels(box[None], self.context.backbone.size).all():
            self._drop("spread: no object to swap, or one that fills the picture")
            return
        assert self.context.picture is not None
        found = find_donor(sample, self.context.indices, self.context.picture, self.context.seed)
        if found is None:
            self._drop("spread: no other picture's object of another label")
            return
        donor, donor_box = found
        plan.swapped.append(place)
        plan.rings.append(ring_masks(rings(sample, box, self.context.grid, self.context.backbone.patch_size)))
        plan.changed["swapped"].append(swap(sample.image, box, donor.image, donor_box))
        plan.changed["other"].append(donor.image)

    def _drop(self, reason: str) -> None:
        self.dropped[_REASONS.index(reason)] += 1

    @property
    def dropped_pictures(self) -> dict[str, int]:
        """How many pictures were not measured, by part and reason."""
        dropped = {reason: int(count) for reason, count in zip(_REASONS, self.dropped, strict=True) if count}
        readings = self._readings
        if readings is not None and readings.rare:
            few = f"fewer than {self.options.folds} measured pictures (diffusion.folds)"
            reason = (
                f"a label of {few}"
                if len(readings.places)
                else f"all labels, or all but one, have {few}, and it takes two"
            )
            dropped[f"leakage: {reason}"] = readings.rare
        return dropped

    def update(self, trace: Trace, batch: Batch) -> None:
        plan = self._plan
        if plan.erased:
            self._keep_tokens(trace, batch, plan)
        numerator = torch.full((len(batch), len(self.columns)), torch.nan)
        denominator = torch.ones_like(numerator)
        spreads = len(self._spread_columns)
        if plan.swapped:
            swapped, other = self._spread(trace, plan)
            numerator[plan.swapped, :spreads] = torch.cat([swapped, swapped, other], 1)
            denominator[plan.swapped, : other.shape[1]] = other
        if self.attributes:
            for place, sample in enumerate(batch.samples):
                if sample.index in self._for_provenance and len(sample.boxes):
                    numerator[place, spreads:], denominator[place, spreads:] = self._provenance(trace, place, sample)
        self.record(batch, numerator, denominator)
        self._keep_pictures(batch, plan)

    def _keep_tokens(self, trace: Trace, batch: Batch, plan: _Plan) -> None:
        masks, stream = torch.stack(plan.masks), self.options.tokens
        samples = [batch.samples[place] for place in plan.erased]
        self.full.append(mean_background(trace, self._probed, masks, plan.erased, stream))
        everywhere = range(len(plan.erased))
        self.erased.append(mean_background(trace.changed["erased"], self._probed, masks, everywhere, stream))
        self.label.append(torch.tensor([sample.label for sample in samples]))
        self.label_index.append(torch.tensor([sample.index for sample in samples]))

    def _spread(self, trace: Trace, plan: _Plan) -> tuple[Tensor, Tensor]:
        """Mean response of every layer's rings to the swapped object and to the other picture, each [b, L * R]."""
        stream, layers = self.options.tokens, self.context.layers
        masks = torch.stack(plan.rings).to(trace.raw[layers[0]].device)
        found = []
        for name in ("swapped", "other"):
            changed = trace.changed[name]
            means = [ring_means(responses(trace, changed, layer, plan.swapped, stream), masks) for layer in layers]
            found.append(torch.cat(means, 1).cpu())
        return found[0], found[1]

    def _provenance(self, trace: Trace, place: int, sample: Sample) -> tuple[Tensor, Tensor]:
        """Shares, areas and completeness of every layer and kind of patch, [columns], means over the chosen patches."""
        numerator = torch.full((len(self._provenance_columns),), torch.nan)
        denominator = torch.ones_like(numerator)
        each = 2 * len(REGIONS) + 1
        for number, layer in enumerate(self.provenance_layers):
            for kind_number, kind in enumerate(KINDS):
                found = self._attributions(trace, place, sample, layer, kind)
                if len(found):
                    start = (number * len(KINDS) + kind_number) * each
                    numerator[start : start + each] = found[:, :each].mean(0)
                    denominator[start + each - 1] = found[:, -1].mean()
        return numerator, denominator

    def _attributions(self, trace: Trace, place: int, sample: Sample, layer: int, kind: str) -> Tensor:
        """[patches, shares + areas + gap + change]."""
        backbone, options = self.context.backbone, self.options
        inside = object_patches(sample, backbone.grid, backbone.patch_size)
        candidates = inside if kind == "object" else background(sample, backbone.grid, backbone.patch_size)
        rng = np.random.default_rng((self.context.seed, sample.index, KINDS.index(kind)))
        target = trace.tokens(layer, options.tokens).cls
        assert target is not None
        rows = []
        for patch in chosen_patches(candidates, options.provenance_patches, rng):
            found = attribute(
                backbone, sample.image, layer, patch, target[place], options.tokens, options.provenance, options.steps
            )
            self.extra_forwards += found.passes
            where = regions(sample, patch, backbone.patch_size)
            area = where.double().mean((1, 2))
            rows.append(torch.cat([shares(found.pixels, where), area, torch.tensor([found.gap, found.change])]))
            if sample.index in self._drawn and layer == self.provenance_layers[-1]:
                self.kept.setdefault(("provenance", sample.index, kind), (sample, patch, found.pixels.numpy()))
        return torch.stack(rows) if rows else torch.zeros(0, 2 * len(REGIONS) + 2)

    def _keep_pictures(self, batch: Batch, plan: _Plan) -> None:
        for name, places in (("erased", plan.erased), ("swapped", plan.swapped)):
            for image, place in zip(plan.changed[name], places, strict=True):
                sample = batch.samples[place]
                if sample.index in self.context.samples:
                    self.kept[name, sample.index] = (sample, self.context.backbone.preprocessing.visible(image))
        self._plan = _Plan()

    @property
    def _readings(self) -> Readings | None:
        """What the probes read, computed once, after all processes' pictures have come together."""
        if "readings" not in self.__dict__:
            self.__dict__["readings"] = self._read()
        return self.__dict__["readings"]

    def _read(self) -> Readings | None:
        if not self.reads_labels or len(self.label_index) == 0:
            return None
        label, index, full, erased = map(_joined, (self.label, self.label_index, self.full, self.erased))
        order = index.argsort()
        self.__dict__["read_pictures"] = index[order].numpy()
        return read_labels(full[order], erased[order], label[order].numpy(), self.options.folds, self.context.seed)

    def series(self) -> Iterator[Part]:
        readings = self._readings
        if readings is not None and len(readings.places):
            rows = np.searchsorted(self.order, self.__dict__["read_pictures"][readings.places])
            yield leakage_series(readings, self._probed, self.context.layers, rows, len(self.order))
        yield from super().series()

    def table(self) -> list[Row]:
        rows = super().table()
        readings = self._readings
        if readings is not None and len(readings.places):
            rows = [self._widened(row, readings) for row in rows]
            chance, n = 100 * readings.chance, len(readings.places)
            rows += [Row(self.name, "leakage_chance", chance, n, layer) for layer in self.context.layers]
        return rows

    def _widened(self, row: Row, readings: Readings) -> Row:
        """Leakage of pictures none of which is read differently: resampling them would claim a certainty that is not there, but
        where the tokens themselves are the same."""
        if row.metric not in ("leakage", "leakage_depth") or row.value != 0 or (row.low, row.high) != (0, 0):
            return row
        places = [self._probed.index(layer) for layer in (row.layer, 0) if layer is not None]
        same = readings.same[places[0]] if row.metric == "leakage" else readings.same[places].all() or row.layer == 0
        bound = 0.0 if same else 100 * none_differs(row.n)
        return replace(row, low=-bound, high=bound) if bound else row

    def shown(self) -> dict[str, Any]:
        """Sample pictures with what was done to them, and attribution maps."""
        visible = self.context.backbone.preprocessing.visible
        changed, maps = [], []
        for index in sorted({key[1] for key in self.kept if key[0] in ("erased", "swapped")}):
            pictures = {name: self.kept.get((name, index)) for name in ("erased", "swapped")}
            sample = next(found[0] for found in pictures.values() if found is not None)
            erased, swapped = (None if found is None else found[1] for found in pictures.values())
            grey = background(sample, self.context.grid, self.context.backbone.patch_size).numpy()
            changed.append(
                InterventionPicture(
                    sample.name, visible(sample.image), sample.boxes.numpy().copy(), erased, swapped, grey
                )
            )
        for key in sorted(key for key in self.kept if key[0] == "provenance"):
            sample, patch, pixels = self.kept[key]
            maps.append(
                ProvenanceMap(
                    sample.name,
                    self.provenance_layers[-1],
                    key[2],
                    patch,
                    self.context.backbone.patch_size,
                    visible(sample.image),
                    sample.boxes.numpy().copy(),
                    pixels,
                )
            )
        return {"interventions": changed, "provenance_maps": maps}


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat(state)
