"""Heads scored on whole pictures: sliding windows for segmentation, the picture and its mirror image for depth."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diffusionlens.analysis.probes.geometry.views import Views
from diffusionlens.analysis.probes.heads.kinds import LayerTokens
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.training import DenseTask
from diffusionlens.analysis.probes.streamed.training import NO_LABELS, Seen, StreamSettings, layer_tokens
from diffusionlens.data.sample import Picture, PictureSource, UnreadablePicture
from diffusionlens.models.backbone import Backbone

Fit = Callable[[Picture], tuple[Picture, Tensor, Views]]
"""A picture as heads are scored on it: the part that counts, the same normalised [3,H,W] at the size that the model sees, and the
views of that."""

Tokens = dict[int, tuple[Tensor | None, Tensor]]


@dataclass
class StreamedSums:
    """Sums by layer, [heads,P,K,R,F], of the pictures `indices` in the order of the data set, and the labels that occur."""

    indices: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sums: dict[int, Tensor] = field(default_factory=dict)
    labels: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Viewed:
    """A picture that went through the model: its labels, its views, and their tokens by layer."""

    index: int
    picture: Picture
    target: Tensor
    views: Views
    tokens: dict[int, LayerTokens]


def viewed(
    backbone: Backbone,
    layers: Sequence[int],
    source: PictureSource,
    indices: Sequence[int],
    fit: Fit,
    seed: int,
    settings: StreamSettings,
    seen: Seen,
) -> Iterator[Viewed]:
    """The labelled pictures `indices`, in a seeded random order, with the tokens of their views.

    Another picture's CLS is that of the view of the picture before; the first picture gets that of the last.
    """
    generator = torch.Generator().manual_seed(seed)
    order = [indices[place] for place in torch.randperm(len(indices), generator=generator).tolist()]
    before: Tokens | None = None
    for index in order:
        opened = _opened(source, index, fit, seen)
        if opened is None:
            continue
        if before is None:
            for other in (other for other in reversed(order) if other != index):
                if (last := _opened(source, other, fit, seen)) is not None:
                    before = _tokens(backbone, layers, last[1], last[2], settings, seen)
                    break
        picture, image, views = opened
        tokens = _tokens(backbone, layers, image, views, settings, seen)
        target = picture.mask if picture.mask is not None else picture.depth
        assert target is not None
        yield Viewed(
            index, picture, target, views,
            {layer: LayerTokens(cls, _other(layer, before, cls), patches) for layer, (cls, patches) in tokens.items()},
        )  # fmt: skip
        before = tokens


def score_streamed(
    task: DenseTask,
    backbone: Backbone,
    heads: Mapping[int, Sequence[LayerHeads]],
    source: PictureSource,
    indices: Sequence[int],
    fit: Fit,
    seed: int,
    settings: StreamSettings,
    seen: Seen,
) -> StreamedSums:
    """Scores heads, by layer (several of one form: seeds), on pictures of `source`."""
    what = f"{backbone.label}: scores on {source.label}"
    found: dict[int, tuple[str, dict[int, Tensor]]] = {}
    result = StreamedSums()
    settings.progress(what, 0, len(indices))
    for one in viewed(backbone, list(heads), source, indices, fit, seed, settings, seen):
        own = {
            layer: torch.stack([_tally(task, head, tokens, one) for head in heads[layer]])
            for layer, tokens in one.tokens.items()
        }
        found[one.index] = (one.picture.name, own)
        if not one.target.is_floating_point():
            result.labels |= set(one.target.unique().tolist())
        settings.progress(what, len(found), len(indices))
    result.indices = sorted(found)
    result.names = [found[index][0] for index in result.indices]
    if found:
        result.sums = {layer: torch.stack([found[index][1][layer] for index in result.indices], 1) for layer in heads}
    return result


@torch.inference_mode()
def view_outputs(head: LayerHeads, tokens: LayerTokens) -> Tensor:
    """What heads say on the grids of views: [V,h,w,K,R,C]."""
    return head(tokens, tokens.patches.flatten(1, 2)).unflatten(1, tokens.patches.shape[1:3])


def _tally(task: DenseTask, head: LayerHeads, tokens: LayerTokens, one: Viewed) -> Tensor:
    """One picture's sums [K,R,F]; the pixels of one kind and rate at a time."""
    outputs = view_outputs(head, tokens)
    size = (one.target.shape[0], one.target.shape[1])
    kinds = [
        torch.stack(
            [
                task.tally_map(task.merged(outputs[:, :, :, kind, rate], one.views, size), one.target)
                for rate in range(outputs.shape[4])
            ]
        )
        for kind in range(outputs.shape[3])
    ]
    return torch.stack(kinds).cpu()


def _tokens(
    backbone: Backbone, layers: Sequence[int], image: Tensor, views: Views, settings: StreamSettings, seen: Seen
) -> Tokens:
    backbone.set_size(views.padding.padded)
    seen.forwards += len(views.corners)
    return layer_tokens(backbone, views.images(image), layers, settings)


def _other(layer: int, before: Tokens | None, cls: Tensor | None) -> Tensor | None:
    """The CLS of the views of the picture before, one for each view of this one."""
    if cls is None:
        return None
    other = None if before is None else before[layer][0]
    if other is None:
        return cls
    return other[torch.arange(len(cls), device=cls.device) % len(other)]


def _opened(source: PictureSource, index: int, fit: Fit, seen: Seen) -> tuple[Picture, Tensor, Views] | None:
    """A picture with labels; None, and why is noted, where it can't be read or has none."""
    try:
        picture = source.open(index)
    except UnreadablePicture as error:
        seen.skipped[source.name(index)] = (error.file, error.reason)
        return None
    seen.notes |= {(picture.name, note) for note in picture.notes}
    if picture.mask is None and picture.depth is None:
        seen.skipped[picture.name] = (picture.name, NO_LABELS)
        return None
    return fit(picture)
