"""`discovery`: boxes and masks of objects that the last layer proposes without labels, against annotated ones."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import Field
from threadpoolctl import threadpool_limits
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Options
from diffusionlens.analysis.discovery.attention_mask import MASS, best_head_jaccard, mass_masks
from diffusionlens.analysis.discovery.corloc import in_pixels, localised
from diffusionlens.analysis.discovery.lost import EXPANSION, lost_box
from diffusionlens.analysis.discovery.tokencut import THRESHOLD, all_alike, tokencut_box
from diffusionlens.capture import AttentionBlock, Trace
from diffusionlens.data.sample import Batch, Sample
from diffusionlens.material import DiscoveredPicture


class DiscoveryOptions(Options):
    """`features`: keys (LOST, TokenCut) or values (which LOST takes for DeiT-III and OpenCLIP) of the last layer. `expansion`
    of LOST, `threshold` of TokenCut, `mass` of the attention mask; `void`: how the masks' 255 counts in the Jaccard index."""

    features: Literal["keys", "values"] = "keys"
    expansion: int = Field(default=EXPANSION, ge=1)
    threshold: float = Field(default=THRESHOLD, ge=-1, lt=1)
    mass: float = Field(default=MASS, gt=0, lt=1)
    void: Literal["background", "ignore"] = "background"


class Discovery(Diagnostic):
    """corloc_lost, corloc_tokencut (percent of pictures) and jaccard_attention (percent) at the last layer.

    corloc_whole: CorLoc of the whole picture taken as the box; lost_whole: pictures in which that is LOST's box.
    uncut: pictures in which every two patches are alike (cosine above the threshold), so that TokenCut has nothing to cut (a
    miss: its eigenvector is arbitrary) and LOST's box is the whole picture.

    Objects are all boxes but crowds; a picture without a box is not measured. Registers and CLS take no part.
    """

    name = "discovery"
    needs = frozenset({"attention"})
    options_type = DiscoveryOptions
    options: DiscoveryOptions

    def __init__(self, context: Context, options: DiscoveryOptions) -> None:
        super().__init__(context, options)
        self.localises = "boxes" in context.provides
        has_masks = "masks" in context.provides and "parsing" not in context.provides
        self.outlines = has_masks and context.backbone.has_cls
        if not self.localises:
            self.left_out.append(LeftOut("corloc_lost, corloc_tokencut", "the data has no boxes"))
        if not has_masks:
            self.left_out.append(LeftOut("jaccard_attention", "the data has no masks of objects before a background"))
        elif not context.backbone.has_cls:
            self.left_out.append(LeftOut("jaccard_attention", "the model has no CLS token"))
        depth = context.backbone.depth
        self.unusable: LeftOut | None = None
        if depth not in context.layers:
            self.unusable = LeftOut("discovery", "it is of the last layer, which is not among --layers")
        elif not (self.localises or self.outlines):
            self.unusable = LeftOut("discovery", "the data has neither boxes nor masks of objects")
        self._features: list[Tensor] = []
        self._attention: list[Tensor] = []

    @cached_property
    def columns(self) -> Sequence[Column]:
        last = self.context.backbone.depth
        columns = []
        if self.localises:
            columns += [
                Column(f"corloc_{way}", last, kind="proportion", scale=100.0) for way in ("lost", "tokencut", "whole")
            ]
            columns += [Column(name, last, kind="proportion", scale=100.0) for name in ("lost_whole", "uncut")]
        if self.outlines:
            columns.append(Column("jaccard_attention", last, scale=100.0))
        return columns

    def observe(self, block: AttentionBlock, batch: Batch) -> None:  # noqa: ARG002
        """Keeps the last layer's features and CLS attention of the batch."""
        if block.layer != self.context.backbone.depth:
            return
        if block.pictures.start == 0:
            self._features, self._attention = [], []
        prefix = self.context.backbone.prefix
        chosen = block.keys if self.options.features == "keys" else block.values
        self._features.append(chosen[:, :, prefix:].transpose(1, 2).flatten(2).detach().double().cpu())
        if self.outlines:
            self._attention.append(block.weights[:, :, 0, prefix:].detach().cpu().clone())

    def update(self, trace: Trace, batch: Batch) -> None:  # noqa: ARG002
        features = torch.cat(self._features)
        attention = torch.cat(self._attention) if self._attention else None
        self._features, self._attention = [], []
        with threadpool_limits(1):  # the same bits every time, and small matrices
            values = [
                self._of_picture(sample, features[place], None if attention is None else attention[place])
                for place, sample in enumerate(batch.samples)
            ]
        self.record(batch, torch.tensor(values))

    def _of_picture(self, sample: Sample, features: Tensor, attention: Tensor | None) -> list[float]:
        grid, patch = self.context.grid, self.context.backbone.patch_size
        values: list[float] = []
        boxes: list[Tensor] = []
        if self.localises:
            truth = sample.boxes[~sample.crowd]
            array = features.numpy()
            ways = (
                lost_box(array, grid, self.options.expansion),
                tokencut_box(array, grid, self.options.threshold),
            )
            boxes = [in_pixels(box, patch) for box in ways]
            uncut = all_alike(array, self.options.threshold)
            whole = in_pixels((0, 0, *grid), patch)
            hits = [
                localised(boxes[0], truth),
                localised(boxes[1], truth) and not uncut,
                localised(whole, truth),
                bool((boxes[0] == whole).all()),
                uncut,
            ]
            values += [float(hit) if len(truth) else torch.nan for hit in hits]
        if attention is not None:
            masks = mass_masks(attention.unflatten(1, grid), self.options.mass)
            ignoring = self.options.void == "ignore"
            found = None if sample.mask is None else best_head_jaccard(masks, sample.mask, ignore_void=ignoring)
            values.append(torch.nan if found is None else found)
        if boxes and sample.index in self.context.samples:
            self.kept[sample.index] = (sample, boxes)
        return values

    def shown(self) -> dict[str, Any]:
        """Sample pictures with the boxes that were proposed."""
        visible = self.context.backbone.preprocessing.visible
        return {
            "discovered": [
                DiscoveredPicture(
                    sample.name,
                    visible(sample.image),
                    sample.boxes.numpy().copy(),
                    lost.numpy(),
                    tokencut.numpy(),
                )
                for _, (sample, (lost, tokencut)) in sorted(self.kept.items())
            ]
        }
