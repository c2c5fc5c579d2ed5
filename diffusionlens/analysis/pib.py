"""`pib`: Point-in-Box, does the patch most like the image token lie on the object?

Source: Shi, Yu, Yang, "Vision Transformers Need More Than Registers" (CVPR 2026, arXiv 2602.22394) and its released
evaluation.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Options
from diffusionlens.analysis.regions import BoxRule, patches_in_boxes
from diffusionlens.capture import Stream, Trace
from diffusionlens.data.sample import Batch, Sample

Query = Literal["auto", "cls", "cls_final", "mean_patch"]

_TOP = 10
_METRICS = ("pib", "pib_chance", "pib_center", "pib_lift", "pib_top10")


class PibOptions(Options):
    """`query`: what a patch is compared with: cls (of the same layer), cls_final (of the last layer), mean_patch (of the
    same layer), auto (cls, or mean_patch for a model without one). `hit`: when a patch counts as inside a box (see
    `regions.patches_in_boxes`). `boxes`: single keeps pictures with exactly one object; any takes a hit in the union of
    all. `max_box_area`: keep only pictures whose box covers less than this share of the picture (the released code uses
    0.25, the paper's text does not say so). `tokens`: normed or raw."""

    query: Query = "auto"
    hit: BoxRule = "touch"
    boxes: Literal["single", "any"] = "single"
    max_box_area: float | None = Field(default=None, gt=0, le=1)
    tokens: Stream = "normed"


class Pib(Diagnostic):
    """Share of pictures whose arg-max patch by cosine to the query lies in the object's box, in percent, per layer.

    pib_chance: mean share of patches that would be a hit. pib_center: the centre patch as predictor. pib_lift: pib minus
    pib_chance. pib_top10: share of the ten best patches that hit. Ties go to the lowest index. COCO crowds and VOC
    "difficult" objects are not counted as objects; a picture whose only box the crop cut away is dropped and counted.
    """

    name = "pib"
    needs = frozenset({"boxes"})
    options_type = PibOptions
    options: PibOptions
    dropped: Tensor

    def __init__(self, context: Context, options: PibOptions) -> None:
        super().__init__(context, options)
        has_cls = context.backbone.has_cls
        self.query: Query = options.query if options.query != "auto" else ("cls" if has_cls else "mean_patch")
        self.unusable: LeftOut | None = None
        if self.query.startswith("cls") and not has_cls:
            self.unusable = LeftOut("pib", f"query={self.query} was asked for, and the model has no CLS token")
        if self.query == "cls_final" and context.backbone.depth not in context.layers:
            self.unusable = LeftOut("pib", "query=cls_final needs the last layer among --layers")
        self.add_state("dropped", default=torch.zeros(len(_REASONS), dtype=torch.int64), dist_reduce_fx="sum")

    @cached_property
    def columns(self) -> Sequence[Column]:
        kinds = {"pib": "proportion", "pib_center": "proportion"}
        return [
            Column(metric, layer, token=self.query, kind=kinds.get(metric, "mean"), scale=100.0)  # type: ignore[arg-type]
            for layer, metric in product(self.context.layers, _METRICS)
        ]

    def update(self, trace: Trace, batch: Batch) -> None:
        if self.unusable is not None:
            return
        targets = [self._target(sample) for sample in batch.samples]
        per_layer = []
        for layer in self.context.layers:
            scores = self._scores(trace, layer)
            self._keep_maps(layer, scores, batch)
            flat = scores.flatten(1).double().numpy()
            per_layer.append(torch.stack([_hits(row, target) for row, target in zip(flat, targets, strict=True)]))
        self.record(batch, torch.stack(per_layer, 1).flatten(1))

    def _scores(self, trace: Trace, layer: int) -> Tensor:
        """Cosine of every patch with the query, [B,h,w] on the CPU."""
        tokens = trace.unit_tokens(layer, self.options.tokens)
        if self.query == "mean_patch":
            raw = trace.tokens(layer, self.options.tokens).flat_patches.mean(1)
            query = torch.nn.functional.normalize(raw, dim=-1)
        else:
            source = tokens
            if self.query == "cls_final":
                source = trace.unit_tokens(self.context.backbone.depth, self.options.tokens)
            assert source.cls is not None
            query = source.cls
        return (tokens.patches @ query[:, None, :, None]).squeeze(-1).cpu()

    def _keep_maps(self, layer: int, scores: Tensor, batch: Batch) -> None:
        for place, sample in enumerate(batch.samples):
            if sample.index in self.context.samples:
                self.kept[layer, sample.index] = scores[place].numpy().copy()

    def _target(self, sample: Sample) -> Tensor | None:
        """The patches that count as a hit, bool [h,w]; None when the picture is not measured, which is counted."""
        is_object = ~(sample.crowd | sample.difficult)
        boxes = sample.boxes[is_object]
        wrong: str | None = None
        if sample.objects == 0:
            wrong = "no object"
        elif self.options.boxes == "single" and sample.objects > 1:
            wrong = "several objects"
        elif len(boxes) == 0:
            wrong = "boxes outside the crop"
        elif self.options.max_box_area is not None and sample.box_area[is_object].sum() >= self.options.max_box_area:
            wrong = "box too large"
        if wrong is not None:
            self.dropped[_REASONS.index(wrong)] += 1
            return None
        backbone = self.context.backbone
        return patches_in_boxes(boxes, backbone.grid, backbone.patch_size, self.options.hit).any(0)

    @property
    def score_maps(self) -> dict[tuple[int, int], np.ndarray]:
        """(layer, index of a sample picture) -> scores [h,w]."""
        return self.kept

    @property
    def dropped_pictures(self) -> dict[str, int]:
        """How many pictures were not measured, by reason."""
        return {reason: int(count) for reason, count in zip(_REASONS, self.dropped, strict=True) if count}


_REASONS = ("no object", "several objects", "boxes outside the crop", "box too large")


def _hits(scores: np.ndarray, target: Tensor | None) -> Tensor:
    """The values of `_METRICS` for one picture, NaN where it is not measured."""
    if target is None:
        return torch.full((len(_METRICS),), torch.nan)
    height, width = target.shape
    inside = target.flatten().numpy()
    best = np.argsort(-scores, kind="stable")[:_TOP]
    hit, chance = float(inside[best[0]]), float(inside.mean())
    centre = float(inside[height // 2 * width + width // 2])
    return torch.tensor([hit, chance, centre, hit - chance, float(inside[best].mean())])
