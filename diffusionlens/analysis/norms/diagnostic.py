"""`norms`: how long the tokens are, and which patch tokens are outliers."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Options, Part
from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.norms.outliers import mad_threshold, valley_threshold
from diffusionlens.analysis.regions import background_patches
from diffusionlens.capture import Stream, Trace
from diffusionlens.data.sample import Batch
from diffusionlens.material import NormHistogram
from diffusionlens.results import Row
from diffusionlens.shelf import Shelf

STREAMS: tuple[Stream, ...] = ("raw", "normed")
_HISTOGRAM_BINS = 80


class NormsOptions(Options):
    """`tokens`: which norms the outlier rules look at. `fixed`: cut-off of the fixed rule (Darcet et al. use 150 for
    DINOv2-g, Jiang et al. 75 for OpenCLIP-B)."""

    tokens: Stream = "raw"
    fixed: float = Field(default=150.0, gt=0)


class Norms(Diagnostic):
    """L2 norms of tokens, token "raw" (residual stream) or "normed" (through the final norm).

    norm_mean: mean over patches, then pictures. norm_median, norm_p99, norm_max: of all patches of all pictures (n counts
    patches; no interval). cls_norm, register_norm. outlier_share: share of patches beyond the threshold of a rule
    (token): "valley" between the two modes of the histogram, or "valley (unimodal)" with share 0 where there is one
    mode; "mad" = median + 6 * 1.4826 * MAD; "fixed=150". outlier_background_share: share of a rule's outliers that lie
    in the background (outside all boxes, or label 0 of the mask at the patch's centre). outlier_neighbor_cos: cosine of a
    patch to its up to four neighbours at layer 0, for a rule's outliers ("outlier:mad") and the other patches
    ("normal:mad").
    """

    name = "norms"
    options_type = NormsOptions
    options: NormsOptions

    def __init__(self, context: Context, options: NormsOptions) -> None:
        super().__init__(context, options)
        self.shelves |= {name: Shelf(self.storage) for name in ("patch_norms", "background", "neighbor_cos")}
        self.by_mask = "masks" in context.provides and "parsing" not in context.provides
        self.has_background = "boxes" in context.provides or self.by_mask
        if not self.has_background:
            self.left_out.append(
                LeftOut("outlier_background_share", "the data has neither boxes nor a background class")
            )
        if not context.backbone.has_cls:
            self.left_out.append(LeftOut("cls_norm", "the model has no CLS token"))
        if not context.backbone.registers:
            self.left_out.append(LeftOut("register_norm", "the model has no registers"))
        self.has_neighbors = context.grid != (1, 1)
        if not self.has_neighbors:
            self.left_out.append(LeftOut("outlier_neighbor_cos", "the grid has a single patch"))

    @cached_property
    def _kinds(self) -> list[str]:
        backbone = self.context.backbone
        return ["norm_mean"] + ["cls_norm"] * backbone.has_cls + ["register_norm"] * bool(backbone.registers)

    @cached_property
    def columns(self) -> Sequence[Column]:
        return [
            Column(kind, layer, token=stream)
            for layer in self.context.layers
            for stream in STREAMS
            for kind in self._kinds
        ]

    def update(self, trace: Trace, batch: Batch) -> None:
        means, patch_norms = [], []
        for layer in self.context.layers:
            for stream in STREAMS:
                tokens = trace.tokens(layer, stream)
                norms = tokens.flat_patches.norm(dim=-1)
                patch_norms.append(norms)
                means.append(norms.mean(1))
                if tokens.cls is not None:
                    means.append(tokens.cls.norm(dim=-1))
                if self.context.backbone.registers:
                    means.append(tokens.registers.norm(dim=-1).mean(1))
        self.record(batch, torch.stack(means, 1))
        self.shelve("patch_norms", torch.stack(patch_norms, 1))
        if self.has_neighbors:
            self.shelve("neighbor_cos", _neighbor_cosine(trace))
        if self.has_background:
            backbone = self.context.backbone
            regions = [
                background_patches(s, backbone.grid, backbone.patch_size, by_mask=self.by_mask).flatten()
                for s in batch.samples
            ]
            self.shelve("background", torch.stack(regions))

    def _patch_norms(self, layer: int, stream: Stream) -> Floats:
        """[pictures,P] of one layer, pictures in the order of the data set."""
        place = self.context.layers.index(layer) * len(STREAMS) + STREAMS.index(stream)
        patches = self.context.grid[0] * self.context.grid[1]
        return self.ordered("patch_norms", slice(place * patches, (place + 1) * patches)).astype(np.float64)

    def thresholds(self, layer: int) -> dict[str, float]:
        """Rule -> threshold; infinity for the valley rule of a unimodal histogram."""
        norms = self._patch_norms(layer, self.options.tokens).ravel()
        valley = valley_threshold(norms)
        return {
            "valley": np.inf if valley is None else valley,
            "mad": mad_threshold(norms),
            f"fixed={self.options.fixed:g}": self.options.fixed,
        }

    def series(self) -> Iterator[Part]:
        """The recorded series, and behind them those that need the thresholds of the whole data set."""
        yield from super().series()
        if not self.order:
            return
        near = self.ordered("neighbor_cos").astype(np.float64) if self.has_neighbors else None
        background = self.ordered("background") if self.has_background else None
        extra: list[tuple[Column, Floats, Floats]] = []
        for layer in self.context.layers:
            if len(extra) >= self.at_once():
                yield _part(extra)
                extra = []
            norms = self._patch_norms(layer, self.options.tokens)
            for rule, threshold in self.thresholds(layer).items():
                outlier = norms > threshold
                every = np.full(len(norms), float(norms.shape[1]))
                named = f"{rule} (unimodal)" if np.isinf(threshold) else rule
                extra.append((Column("outlier_share", layer, token=named), outlier.sum(1).astype(float), every))
                for which, chosen in (("outlier", outlier), ("normal", ~outlier)):
                    if near is None:
                        continue
                    column = Column("outlier_neighbor_cos", layer, token=f"{which}:{rule}")
                    extra.append((column, (near * chosen).sum(1), chosen.sum(1).astype(float)))
                if background is not None:
                    column = Column("outlier_background_share", layer, token=rule)
                    hidden = (outlier & background).sum(1).astype(float)
                    extra.append((column, hidden, outlier.sum(1).astype(float)))
        yield _part(extra)

    def table(self) -> list[Row]:
        rows = super().table()
        if not self.order:
            return rows
        for layer in self.context.layers:
            for stream in STREAMS:
                norms = self._patch_norms(layer, stream).ravel()
                pooled = {
                    "norm_median": np.median(norms),
                    "norm_p99": np.percentile(norms, 99),
                    "norm_max": norms.max(),
                }
                rows += [
                    Row(self.name, metric, float(v), norms.size, layer, token=stream) for metric, v in pooled.items()
                ]
        return rows

    def histograms(self) -> dict[int, NormHistogram]:
        """layer -> histogram of the norms that the outlier rules look at."""
        found = {}
        for layer in self.context.layers:
            norms = self._patch_norms(layer, self.options.tokens).ravel()
            low, high = max(float(norms.min()), 1e-6), max(float(norms.max()), 2e-6)
            edges = np.geomspace(low * 0.999, high * 1.001, _HISTOGRAM_BINS + 1)
            counts = np.histogram(norms, edges)[0].astype(float)
            found[layer] = NormHistogram(edges, counts, self.thresholds(layer))
        return found


def _part(series: Sequence[tuple[Column, Floats, Floats]]) -> Part:
    columns, above, below = zip(*series, strict=True)
    return list(columns), np.column_stack(above), np.column_stack(below)


def _neighbor_cosine(trace: Trace) -> Tensor:
    """Mean cosine of every patch to its up to four neighbours at layer 0, [B,P]."""
    patches = trace.unit_tokens(0, "raw").patches
    total, count = torch.zeros(patches.shape[:3]), torch.zeros(patches.shape[1:3])
    total, count = total.to(patches.device), count.to(patches.device)
    down = (patches[:, 1:] * patches[:, :-1]).sum(-1)
    right = (patches[:, :, 1:] * patches[:, :, :-1]).sum(-1)
    total[:, 1:] += down
    total[:, :-1] += down
    total[:, :, 1:] += right
    total[:, :, :-1] += right
    count[1:] += 1
    count[:-1] += 1
    count[:, 1:] += 1
    count[:, :-1] += 1
    return (total / count.clamp(min=1)).flatten(1)
