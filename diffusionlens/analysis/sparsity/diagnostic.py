"""`sparsity`: how many tokens a token attends to, per layer and head, from every row of every attention map."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Options, Part
from diffusionlens.analysis.regions import object_patches
from diffusionlens.analysis.sparsity.row_sums import TOP, RowSums, map_sums, mean_of_defined
from diffusionlens.capture import AttentionBlock, Trace
from diffusionlens.data.sample import Batch

_SPREAD = (
    "support",
    "density",
    "zero_share",
    "entropy",
    "entropy_normalized",
    "effective_support",
    "hoyer",
    "top1_weight",
    "top10_mass",
)


class SparsityOptions(Options):
    """No options: every head, every query, exactly."""


class Sparsity(Diagnostic):
    """Attention statistics by query and key kind, token "QUERY>KEY" with KEY one of all, cls, register, patch.

    support, density and zero_share count weights > 0 among the keys of the kind. entropy (nats), entropy_normalized
    (divided by log n), effective_support = exp(entropy), hoyer, top1_weight, top10_mass describe the weights
    renormalised over the keys of the kind (over "all" they sum to 1 already). `mass` is the weight that goes to a
    kind (`cls_weight` for CLS). All are means over the queries of a picture, then over pictures; head "mean" averages
    the heads. A query without any weight on a kind does not count in that kind's renormalised statistics.

    mean_distance: patch>patch, in pixels between patch centres. cls_closed_share: share of patch queries whose weight
    on CLS is exactly 0. background_to_object, object_to_background: weight that a patch outside every box (inside
    one) puts on patches inside (outside). logit_std: standard deviation of a query's scaled logits over the keys.

    In float32 a softmax weight is exactly 0 when its logit is about 104 below the row's largest.
    """

    name = "sparsity"
    needs = frozenset({"attention"})
    options_type = SparsityOptions

    def __init__(self, context: Context, options: SparsityOptions) -> None:
        super().__init__(context, options)
        backbone = context.backbone
        self.layers = [layer for layer in context.layers if layer > 0]
        self.kinds = {"patch": slice(backbone.prefix, None)}
        if backbone.registers:
            self.kinds["register"] = slice(int(backbone.has_cls), backbone.prefix)
        if backbone.has_cls:
            self.kinds["cls"] = slice(0, 1)
        self.boxes = "boxes" in context.provides
        self.distance = _patch_distances(context.grid, backbone.patch_size)
        self._values: Tensor | None = None
        self._objects = torch.zeros(0)
        if not self.boxes:
            self.left_out.append(LeftOut("background_to_object, object_to_background", "the data has no boxes"))
        if not backbone.has_cls:
            self.left_out.append(LeftOut("cls_weight, cls_closed_share", "the model has no CLS token"))

    @cached_property
    def series_of_a_head(self) -> list[tuple[str, str]]:
        """(metric, token) of every number of one layer and head, in the order of `_statistics`."""
        return list(self._names())

    def _names(self) -> Iterator[tuple[str, str]]:
        for query in self.kinds:
            for metric in (*_SPREAD, "logit_std"):
                yield metric, f"{query}>all"
            for metric in (*_SPREAD, "mass"):
                yield metric, f"{query}>patch"
            for key in self.kinds:
                if key != "patch":
                    yield ("cls_weight" if key == "cls" else "mass"), f"{query}>{key}"
                    yield "zero_share", f"{query}>{key}"
        yield "mean_distance", "patch>patch"
        if "cls" in self.kinds:
            yield "cls_closed_share", "patch>cls"
        if self.boxes:
            yield "background_to_object", "patch>patch"
            yield "object_to_background", "patch>patch"

    @cached_property
    def columns(self) -> Sequence[Column]:
        heads = range(self.context.backbone.heads)
        return [
            Column(metric, layer, head, token)
            for layer, head, (metric, token) in product(self.layers, heads, self.series_of_a_head)
        ]

    def observe(self, block: AttentionBlock, batch: Batch) -> None:
        if block.layer not in self.layers:
            return
        if self._values is None:
            heads = block.weights.shape[1]
            self._values = torch.full((len(batch), len(self.layers), heads, len(self.series_of_a_head)), torch.nan)
            self._objects = self._object_patches(batch).to(block.weights.device)
        values = self._statistics(block, self._objects[block.pictures])
        self._values[block.pictures, self.layers.index(block.layer)] = values.cpu()

    def update(self, trace: Trace, batch: Batch) -> None:  # noqa: ARG002  (attention came through `observe`)
        assert self._values is not None, "update without attention"
        self.record(batch, self._values.flatten(1))
        self._values = None

    def _object_patches(self, batch: Batch) -> Tensor:
        backbone = self.context.backbone
        regions = [object_patches(sample, backbone.grid, backbone.patch_size).flatten() for sample in batch.samples]
        return torch.stack(regions)

    def _statistics(self, block: AttentionBlock, objects: Tensor) -> Tensor:
        """[b,heads,S]: the numbers of `series_of_a_head`, in its order."""
        weights, patch = block.weights, self.kinds["patch"]
        found = map_sums(block, patch.start, self.distance.to(weights.device), objects)
        sums = {key: RowSums.of(weights[..., keys]) for key, keys in self.kinds.items() if key != "patch"}
        everything = sum(sums.values(), start=found.patches)
        rows = [*_spread(everything), found.logit_std, *_spread(found.patches), found.patches.mass]
        for of_kind in sums.values():
            rows += [of_kind.mass, 1 - of_kind.support / of_kind.n]
        by_row = torch.stack(rows)
        numbers = [mean_of_defined(by_row[..., queries]) for queries in self.kinds.values()]

        mass = found.patches.mass[..., patch]
        numbers.append(mean_of_defined(found.weighted_distance[..., patch] / mass)[None])
        if "cls" in self.kinds:
            numbers.append((sums["cls"].mass[..., patch] == 0).float().mean(-1)[None])
        if self.boxes:
            on_objects = found.on_objects[..., patch]
            inside = objects[:, None].expand_as(on_objects)
            numbers.append(torch.where(inside, torch.nan, on_objects).nanmean(-1)[None])
            numbers.append(torch.where(inside, (mass - on_objects).clamp(min=0), torch.nan).nanmean(-1)[None])
        return torch.cat(numbers).movedim(0, -1)

    def series(self) -> Iterator[Part]:
        """The heads' series, and behind them their average as head "mean"."""
        yield from super().series()
        at_once = self.at_once(len(self.series_of_a_head))
        for start in range(0, len(self.layers), at_once):
            yield self._means(range(start, min(start + at_once, len(self.layers))))

    def _means(self, places: Sequence[int]) -> Part:
        """Averages over the heads that a picture counts in, of some layers; one head after the other is read."""
        heads, of_a_head = self.context.backbone.heads, len(self.series_of_a_head)
        means, counted = [], []
        for place in places:
            pictures = len(self.shelves["index"])
            total, count = np.zeros((pictures, of_a_head)), np.zeros((pictures, of_a_head))
            for head in range(heads):
                start = (place * heads + head) * of_a_head
                _, numerator, denominator = self.recorded(slice(start, start + of_a_head))
                total += np.where(denominator > 0, numerator, 0)
                count += denominator > 0
            means.append(total / np.maximum(count, 1))
            counted.append((count > 0).astype(np.float64))
        columns = [
            replace(Column(metric, self.layers[place], None, token), head="mean")
            for place, (metric, token) in product(places, self.series_of_a_head)
        ]
        return columns, np.concatenate(means, 1), np.concatenate(counted, 1)


def _spread(sums: RowSums) -> tuple[Tensor, ...]:
    """The statistics of `_SPREAD` for every row, [...]."""
    density, entropy = sums.support / sums.n, sums.entropy()
    normalized = entropy / np.log(sums.n) if sums.n > 1 else torch.full_like(entropy, torch.nan)
    return (
        sums.support,
        density,
        1 - density,
        entropy,
        normalized,
        entropy.exp(),
        sums.hoyer(),
        sums.top_mass(1),
        sums.top_mass(TOP),
    )


def _patch_distances(grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Distance in pixels between all patch centres, [h*w,h*w]."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]) * patch[0], torch.arange(grid[1]) * patch[1], indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], -1).float()
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
