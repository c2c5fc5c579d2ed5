"""`explorer`: for some pictures, the cosines between all tokens and the attention rows (mean over heads) of every layer.

It measures nothing and adds no row to the table; the page shows its maps patch by patch. Every picture is packed as it passes, so
that memory holds packed pictures only, and no forward pass is added.
"""

import io
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, Options
from diffusionlens.capture import AttentionBlock, Stream, Trace
from diffusionlens.data.sample import Batch, Sample
from diffusionlens.errors import InputError
from diffusionlens.explorer.attention import pack_attention
from diffusionlens.explorer.cosines import pack_cosines
from diffusionlens.explorer.packed import ExploredModel, PackedLayer, PackedMap, PackedPicture
from diffusionlens.explorer.size import Extent, most_pictures
from diffusionlens.results import Row

_JPEG_QUALITY = 85


class ExplorerOptions(Options):
    """`pictures`: how many, evenly spaced over those measured (`--explore`). `tokens`: normed or raw. `attention`: also the
    attention rows. `megabytes`: what the explorer may add to the page; more is refused before anything is measured."""

    pictures: int = Field(default=0, ge=0)
    tokens: Stream = "normed"
    attention: bool = True
    megabytes: float = Field(default=18, gt=0)


class Explorer(Diagnostic):
    """Packed cosines and attention rows of `pictures` pictures; no numbers for the table."""

    name = "explorer"
    options_type = ExplorerOptions
    options: ExplorerOptions
    columns: Sequence[Column] = ()

    def __init__(self, context: Context, options: ExplorerOptions) -> None:
        super().__init__(context, options)
        self.chosen = context.evenly_spaced(options.pictures)
        self.watches = options.attention and max(context.layers) > 0
        self._attention: dict[tuple[int, int], PackedMap] = {}
        self._seconds: dict[int, float] = {}

    def without_attention(self) -> str | None:
        self.watches = False
        return "attention in the explorer"

    @property
    def extent(self) -> Extent:
        """What a picture of this model can put on the page."""
        backbone, layers = self.context.backbone, self.context.layers
        patches = self.context.grid[0] * self.context.grid[1]
        points = patches + backbone.has_cls
        return Extent(
            points=points,
            columns=points + (backbone.registers > 0) if self.watches else 0,
            layers=len(layers),
            attention_layers=sum(layer > 0 for layer in layers),
            pixels=backbone.size[0] * backbone.size[1],
        )

    def observe(self, block: AttentionBlock, batch: Batch) -> None:
        """Packs the rows of the chosen pictures, mean over heads."""
        if block.layer not in self.context.layers:
            return
        for place, sample in enumerate(batch.samples[block.pictures]):
            if sample.index in self.chosen:
                started = time.perf_counter()
                rows = self._by_kind(block.weights[place].mean(0, dtype=torch.float64).cpu().numpy())
                self._attention[sample.index, block.layer] = pack_attention(rows)
                self._count(sample.index, started)

    def _by_kind(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of CLS and patches; columns of CLS, all registers together, patches."""
        backbone = self.context.backbone
        cls, prefix = int(backbone.has_cls), backbone.prefix
        rows = np.concatenate([weights[:cls], weights[prefix:]])
        registers = rows[:, cls:prefix].sum(1, keepdims=True)[:, : int(backbone.registers > 0)]
        return np.concatenate([rows[:, :cls], registers, rows[:, prefix:]], axis=1)

    def update(self, trace: Trace, batch: Batch) -> None:
        for place, sample in enumerate(batch.samples):
            if sample.index in self.chosen:
                started = time.perf_counter()
                layers = {layer: self._layer(trace, place, sample.index, layer) for layer in self.context.layers}
                image = self._image(sample)
                self._count(sample.index, started)
                self.kept[sample.index] = PackedPicture(sample.name, image, layers, self._seconds.pop(sample.index))

    def _layer(self, trace: Trace, place: int, index: int, layer: int) -> PackedLayer:
        tokens = trace.tokens(layer, self.options.tokens)
        points = tokens.flat_patches[place]
        if tokens.cls is not None:
            points = torch.cat([tokens.cls[place][None], points])
        return PackedLayer(pack_cosines(points.cpu().numpy()), self._attention.pop((index, layer), None))

    def _image(self, sample: Sample) -> bytes:
        packed = io.BytesIO()
        visible = self.context.backbone.preprocessing.visible(sample.image)
        Image.fromarray(visible).save(packed, format="JPEG", quality=_JPEG_QUALITY)
        return packed.getvalue()

    def _count(self, index: int, started: float) -> None:
        self._seconds[index] = self._seconds.get(index, 0.0) + time.perf_counter() - started

    def table(self) -> list[Row]:
        """Nothing: the explorer measures nothing."""
        return []

    def shown(self) -> dict[str, Any]:
        """The pictures in the order of the data set."""
        backbone = self.context.backbone
        model = ExploredModel(
            label=backbone.label,
            grid=self.context.grid,
            size=backbone.size,
            depth=backbone.depth,
            has_cls=backbone.has_cls,
            registers=backbone.registers,
            tokens=self.options.tokens,
            attention=self.watches,
            pictures=dict(sorted(self.kept.items())),
        )
        return {"explored": model}


def refuse_too_many(explorers: Sequence[Explorer]) -> None:
    """Refuses pictures that could make the page larger than the options allow, summed over all models.

    Raises:
        InputError: with the number that surely fits.
    """
    if not explorers:
        return
    options = explorers[0].options
    wanted = min(options.pictures, len(explorers[0].context.indices))
    fitting = most_pictures([explorer.extent for explorer in explorers], options.megabytes)
    if wanted <= fitting:
        return
    _, rows, columns = max((math.prod(explorer.context.grid), *explorer.context.grid) for explorer in explorers)
    models = f"{len(explorers)} model{'s' * (len(explorers) > 1)}"
    most = f"--explore {fitting}, " if fitting else ""
    raise InputError(
        f"--explore {options.pictures}: {wanted} pictures at up to {rows} x {columns} patches, of {models}, could make the page "
        f"larger than {options.megabytes:g} MB; use {most}fewer --layers, a smaller --size, --set explorer.attention=false, or "
        f"allow more as --set explorer.megabytes={_needed(explorers, wanted)}"
    )


def _needed(explorers: Sequence[Explorer], pictures: int) -> int:
    return int(sum(explorer.extent.most_bytes() for explorer in explorers) * pictures / 1e6) + 1
