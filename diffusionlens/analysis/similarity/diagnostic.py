"""`similarity`: how alike tokens are, with CLS, with each other, near and far, inside and across regions."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, LeftOut, Options
from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.regions import object_patches, patch_labels
from diffusionlens.analysis.similarity.cka import LEAST as CKA_LEAST
from diffusionlens.analysis.similarity.cka import debiased_cka
from diffusionlens.analysis.similarity.dse import GROUP, dse_code, dse_paper
from diffusionlens.analysis.similarity.rank import SecondMoments, chosen_tokens, effective_rank, roots
from diffusionlens.analysis.similarity.spatial import PatchDistances, region_contrast, region_indicators
from diffusionlens.capture import Stream, Trace
from diffusionlens.data.sample import IGNORE, Batch
from diffusionlens.results import Row

_CKA_PICTURES = 1000  # at most, evenly spaced: the estimate is unbiased for any number, the cost is quadratic in it


class SimilarityOptions(Options):
    """`tokens`: normed or raw. `rank_tokens`: at most so many seeded patch tokens in effective_rank. `dse_tokens`: at most
    so many in the paper's DSE. `dse_weight`: its weight of the dimension term (see `dse.DseParts`)."""

    tokens: Stream = "normed"
    rank_tokens: int = Field(default=4_096, ge=2)
    dse_tokens: int = Field(default=1_024, ge=48)
    dse_weight: float = 1.0


class Similarity(Diagnostic):
    """Cosines between tokens per layer; see the definitions of every metric in the documentation.

    cls_patch_cos, cls_patch_cos_prenorm and _postnorm (before and after the first norm of block l), patch_patch_cos, lds,
    cds, rmsc, srss (token: by "masks" or "boxes") are means over pictures. effective_rank (n = tokens),
    cka_cls_patchmean (n = pictures), dse, dse_inter, dse_intra, dse_dim (n = tokens) and dse_code (n = pictures) describe
    a seeded sample and have no interval.
    """

    name = "similarity"
    options_type = SimilarityOptions
    options: SimilarityOptions

    moments: Tensor
    rank_count: Tensor
    cls_index: list[Tensor]
    cls_tokens: list[Tensor]
    patch_means: list[Tensor]
    sample_index: list[Tensor]
    sample_tokens: list[Tensor]
    group_index: list[Tensor]
    group_tokens: list[Tensor]

    def __init__(self, context: Context, options: SimilarityOptions) -> None:
        super().__init__(context, options)
        backbone, layers = context.backbone, context.layers
        patches = self._patches = context.grid[0] * context.grid[1]
        for state in (
            "cls_index",
            "cls_tokens",
            "patch_means",
            "sample_index",
            "sample_tokens",
            "group_index",
            "group_tokens",
        ):
            self.add_state(state, default=[], dist_reduce_fx="cat")
        moments = torch.zeros(len(layers), backbone.width, backbone.width, dtype=torch.float64)
        self.add_state("moments", default=moments, dist_reduce_fx="sum")
        self.add_state("rank_count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self._waiting = SecondMoments(len(layers), backbone.width)
        # At most so many tokens in all: less than one a picture means one from some pictures.
        self._rank_share = max(1, min(patches, options.rank_tokens // len(context.indices)))
        self._for_rank = context.evenly_spaced(options.rank_tokens)
        self._dse_share = max(1, min(patches, options.dse_tokens // len(context.indices)))
        self._for_dse = context.evenly_spaced(options.dse_tokens)
        self._for_cka = context.evenly_spaced(_CKA_PICTURES)
        self._for_group = context.evenly_spaced(GROUP)
        self._distances = PatchDistances(context.grid)
        self.regions = "masks" if "masks" in context.provides else "boxes" if "boxes" in context.provides else None
        self._prenorm = tuple(n for n in layers if n > 0 and backbone.has_cls and backbone.first_norm(n) is not None)
        self.left_out += self._missing()

    def _missing(self) -> list[LeftOut]:
        """What the model, its grid or the pictures do not allow."""
        missing = []
        around = "cls_patch_cos_prenorm, cls_patch_cos_postnorm"
        if not self.context.backbone.has_cls:
            missing.append(LeftOut(f"cls_patch_cos, {around}, cka_cls_patchmean", "the model has no CLS token"))
        else:
            if not self._prenorm and max(self.context.layers) > 0:
                missing.append(LeftOut(around, "the blocks have no first norm"))
            if len(self.context.indices) < CKA_LEAST:
                missing.append(LeftOut("cka_cls_patchmean", f"fewer than {CKA_LEAST} pictures"))
        if self.regions is None:
            missing.append(LeftOut("srss", "the data has neither masks nor boxes"))
        farthest = sum(self.context.grid) - 2
        needed = {"patch_patch_cos": 1, "lds": 2, "cds": 2}
        if short := [metric for metric, distance in needed.items() if farthest < distance]:
            missing.append(
                LeftOut(", ".join(short), f"a grid of {' x '.join(map(str, self.context.grid))} patches is too small")
            )
        return missing

    @cached_property
    def columns(self) -> Sequence[Column]:
        columns = []
        for layer in self.context.layers:
            if self.context.backbone.has_cls:
                columns.append(Column("cls_patch_cos", layer))
            if layer in self._prenorm:
                columns += [Column("cls_patch_cos_prenorm", layer), Column("cls_patch_cos_postnorm", layer)]
            columns += [Column(metric, layer) for metric in ("patch_patch_cos", "lds", "cds", "rmsc")]
            if self.regions is not None:
                columns.append(Column("srss", layer, token=self.regions))
        return columns

    def update(self, trace: Trace, batch: Batch) -> None:
        regions = None
        if self.regions is not None:
            device = trace.raw[self.context.layers[0]].device
            regions = region_indicators(self._region_labels(batch), IGNORE).to(device)
        values = []
        for layer in self.context.layers:
            values += self._of_layer(trace, layer, regions)
        self.record(batch, torch.stack([value.cpu().float() for value in values], 1))
        self._sample(trace, batch)

    def _region_labels(self, batch: Batch) -> Tensor:
        """[B,P]: what every patch shows, IGNORE where that is not known."""
        backbone = self.context.backbone
        labels = []
        for sample in batch.samples:
            if self.regions == "masks" and sample.mask is None:
                labels.append(torch.full((self._patches,), IGNORE))
            elif self.regions == "masks":
                labels.append(patch_labels(sample.mask, backbone.patch_size).flatten().long())  # type: ignore[arg-type]
            else:
                labels.append(object_patches(sample, backbone.grid, backbone.patch_size).flatten().long())
        return torch.stack(labels)

    def _of_layer(self, trace: Trace, layer: int, regions: Tensor | None) -> list[Tensor]:
        """[B] for each column of `layer`, in the order of `columns`."""
        values = []
        tokens = trace.unit_tokens(layer, self.options.tokens)
        patches = tokens.flat_patches
        centre = patches.mean(1, keepdim=True)
        if tokens.cls is not None:
            values.append((centre.squeeze(1) * tokens.cls).sum(-1))
        if layer in self._prenorm:
            values += self._around_first_norm(trace, layer)
        profile = self._distances.profile(patches)
        values += [profile.off_diagonal(), profile.local_minus_distant(self.context.grid), profile.decay_slope()]
        values.append((patches - centre).norm(dim=(1, 2)) / self._patches**0.5)
        if regions is not None:
            values.append(region_contrast(patches, regions))
        return values

    def _around_first_norm(self, trace: Trace, layer: int) -> list[Tensor]:
        """Mean cosine of CLS with the patches in front of and behind the first norm of block `layer`, each [B]."""
        tokens, norm = trace.prenorm(layer), self.context.backbone.first_norm(layer)
        assert tokens is not None
        assert norm is not None
        prefix = self.context.backbone.prefix
        return [_cls_patch_cosine(stream.float(), prefix) for stream in (tokens, norm(tokens))]

    def _sample(self, trace: Trace, batch: Batch) -> None:
        """Keeps the seeded tokens and pictures that the metrics of the whole data set need."""
        tokens = [trace.tokens(layer, self.options.tokens) for layer in self.context.layers]
        patches = [of_layer.flat_patches for of_layer in tokens]
        index = torch.tensor([sample.index for sample in batch.samples])
        for_rank, chosen = self._chosen(batch, self._for_rank, self._rank_share)
        if for_rank:
            self._waiting.add([of_layer[torch.tensor(for_rank)[:, None], chosen].flatten(0, 1) for of_layer in patches])
            self.rank_count += chosen.numel()
        for_dse, chosen = self._chosen(batch, self._for_dse, self._dse_share)
        if for_dse:
            self.sample_index.append(index[for_dse])
            rows = torch.tensor(for_dse)[:, None]
            self.sample_tokens.append(torch.stack([of_layer[rows, chosen] for of_layer in patches], 1).cpu())
        group = [place for place, sample in enumerate(batch.samples) if sample.index in self._for_group]
        if group:
            self.group_index.append(index[group])
            self.group_tokens.append(torch.stack([of_layer[group] for of_layer in patches], 1).cpu())
        for_cka = [place for place, sample in enumerate(batch.samples) if sample.index in self._for_cka]
        if self.context.backbone.has_cls and for_cka:
            self.cls_index.append(index[for_cka])
            cls_tokens = [of_layer.cls[for_cka] for of_layer in tokens if of_layer.cls is not None]
            self.cls_tokens.append(torch.stack(cls_tokens, 1).cpu())
            self.patch_means.append(torch.stack([of_layer.mean(1)[for_cka] for of_layer in patches], 1).cpu())

    def _chosen(self, batch: Batch, wanted: frozenset[int], share: int) -> tuple[list[int], Tensor]:
        """Places in the batch of the wanted pictures, and the seeded patches [pictures,share] of each."""
        places = [place for place, sample in enumerate(batch.samples) if sample.index in wanted]
        indices = [batch.samples[place].index for place in places]
        chosen = [chosen_tokens(self.context.seed, index, self._patches, share) for index in indices]
        return places, torch.from_numpy(np.array(chosen, dtype=np.int64).reshape(len(places), share))

    def finish(self) -> None:
        """Brings the tokens that wait for the next product into the state."""
        self._waiting.flush()
        self.moments += self._waiting.sums
        self._waiting.sums.zero_()

    def table(self) -> list[Row]:
        self.finish()
        rows = super().table()
        if len(self.sample_index) == 0:
            return rows
        for place, layer in enumerate(self.context.layers):
            rank = effective_rank(roots(self.moments[place].numpy()))
            rows.append(Row(self.name, "effective_rank", rank, int(self.rank_count), layer))
            tokens = _of_layer(self.sample_index, self.sample_tokens, place).reshape(-1, self.context.backbone.width)
            parts = dse_paper(tokens, self.context.seed)
            numbers = {"dse": parts.total(self.options.dse_weight)}
            numbers |= {"dse_inter": parts.inter, "dse_intra": parts.intra, "dse_dim": parts.dim}
            rows += [Row(self.name, metric, value, len(tokens), layer) for metric, value in numbers.items()]
            if len(self.group_index):
                group = _of_layer(self.group_index, self.group_tokens, place)
                code = dse_code(group, self.context.seed)
                rows += [Row(self.name, "dse_code", code, len(group), layer)] * bool(np.isfinite(code))
            if len(self.cls_index) == 0:
                continue
            cls_tokens, patch_means = (
                _of_layer(self.cls_index, kept, place) for kept in (self.cls_tokens, self.patch_means)
            )
            if len(cls_tokens) >= CKA_LEAST:
                cka = debiased_cka(cls_tokens, patch_means)
                rows += [Row(self.name, "cka_cls_patchmean", cka, len(cls_tokens), layer)] * bool(np.isfinite(cka))
        return rows


def _cls_patch_cosine(tokens: Tensor, prefix: int) -> Tensor:
    """Mean cosine of CLS with the patches of [B,N,D], [B]; the tokens are not copied to be scaled."""
    cls, patches = tokens[:, 0], tokens[:, prefix:]
    weights = 1 / patches.norm(dim=-1).clamp(min=1e-12)
    mean = (weights[:, None] @ patches).squeeze(1) / patches.shape[1]
    return (mean * functional.normalize(cls, dim=-1)).sum(-1)


def _of_layer(index: list[Tensor] | Tensor, values: list[Tensor] | Tensor, place: int) -> Floats:
    """What a list state keeps of one layer, in the order of `index`; a layer at a time, as all of them take some 100 MB."""
    indices, parts = ([kept] if isinstance(kept, Tensor) else kept for kept in (index, values))
    return torch.cat([part[:, place] for part in parts])[torch.cat(indices).argsort()].double().numpy()
