"""Traces and batches of planted tokens, so that a diagnostic can be checked against a truth that is known."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from diffusionlens.analysis.diagnostic import Context, Diagnostic
from diffusionlens.capture import Trace
from diffusionlens.data.sample import Batch, Sample
from diffusionlens.models.backbone import Backbone, Origin, Preprocessing

PATCH = (4, 4)


class PlantedBlock(nn.Module):
    """A block that does nothing; `norm1` is there, as in a pre-norm block, where a norm is given."""

    def __init__(self, norm1: nn.Module | None) -> None:
        super().__init__()
        if norm1 is not None:
            self.norm1 = norm1


def backbone_of(model: nn.Module, width: int, size: int, label: str = "planted", heads: int = 1) -> Backbone:
    """A model of one's own, which has `blocks`, as a backbone: patches of 4 x 4 pixels, CLS, pictures of `size` squared."""
    return Backbone(
        label=label,
        model=model,
        blocks=list(model.blocks),  # type: ignore[arg-type]
        norm=None,
        patch_size=PATCH,
        width=width,
        heads=heads,
        has_cls=True,
        registers=0,
        native_size=(size, size),
        preprocessing=Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        origin=Origin("planted:", "planted", "planted"),
    )


def planted_backbone(
    depth: int,
    grid: tuple[int, int],
    width: int,
    has_cls: bool = True,
    registers: int = 0,
    norm: nn.Module | None = None,
    first_norms: Sequence[nn.Module] | None = None,
) -> Backbone:
    """A backbone of `depth` empty blocks with patches of 4 x 4 pixels; without `first_norms` no block has a first norm."""
    blocks = [PlantedBlock(None if first_norms is None else first_norms[place]) for place in range(depth)]
    size = (grid[0] * PATCH[0], grid[1] * PATCH[1])
    return Backbone(
        label="planted",
        model=nn.ModuleList(blocks),
        blocks=blocks,
        norm=norm,
        patch_size=PATCH,
        width=width,
        heads=1,
        has_cls=has_cls,
        registers=registers,
        native_size=size,
        preprocessing=Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        origin=Origin("planted:", "planted", "planted"),
    )


def planted_trace(
    raw: dict[int, Tensor],
    grid: tuple[int, int],
    has_cls: bool = True,
    registers: int = 0,
    norm: nn.Module | None = None,
    first_norms: Sequence[nn.Module] | None = None,
) -> Trace:
    """A trace of the raw tokens {layer: [B,N,D]}, N = CLS + registers + grid patches, of a backbone with max(layer) blocks."""
    width = next(iter(raw.values())).shape[-1]
    return Trace(planted_backbone(max(raw), grid, width, has_cls, registers, norm, first_norms), dict(raw))


def planted_batch(
    pictures: int,
    grid: tuple[int, int],
    boxes: Sequence[Tensor] | None = None,
    masks: Sequence[Tensor] | None = None,
    labels: Sequence[int] | None = None,
    start: int = 0,
) -> Batch:
    """A batch of blank pictures numbered from `start`; boxes [K,4] XYXY pixels and masks int64 [H,W] one a picture."""
    height, width = grid[0] * PATCH[0], grid[1] * PATCH[1]
    samples = []
    for place in range(pictures):
        own = torch.zeros(0, 4) if boxes is None else boxes[place].float().reshape(-1, 4)
        count = len(own)
        area = (own[:, 2] - own[:, 0]) * (own[:, 3] - own[:, 1]) / (height * width)
        samples.append(
            Sample(
                image=torch.zeros(3, height, width),
                name=f"{start + place:05d}.png",
                index=start + place,
                original_size=(height, width),
                label=None if labels is None else labels[place],
                boxes=own,
                category=torch.zeros(count, dtype=torch.int64),
                crowd=torch.zeros(count, dtype=torch.bool),
                difficult=torch.zeros(count, dtype=torch.bool),
                objects=count,
                box_area=area,
                mask=None if masks is None else masks[place],
            )
        )
    return collate(samples)


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples of one size as a batch."""
    return Batch(torch.stack([sample.image for sample in samples]), list(samples))


def patch_mask(labels: Tensor) -> Tensor:
    """A mask [H,W] whose patches are each of one label, from labels [h,w]."""
    return labels.long().repeat_interleave(PATCH[0], 0).repeat_interleave(PATCH[1], 1)


def planted_context(
    trace: Trace,
    pictures: int,
    provides: Collection[str] = (),
    layers: Sequence[int] | None = None,
    seed: int = 0,
    samples: Sequence[int] = (),
) -> Context:
    """The context of a measurement over pictures 0..pictures-1; `layers` are those of the trace when not given."""
    reported = tuple(sorted(trace.raw) if layers is None else layers)
    return Context(trace.backbone, reported, tuple(range(pictures)), frozenset(provides), seed, tuple(samples))


def joined(parts: Sequence[Diagnostic]) -> Diagnostic:
    """What several processes have measured, in the first one's diagnostic, as `Processes.merge` leaves it."""
    for other in parts[1:]:
        parts[0].merge_state(other)
    return parts[0]


def feed_planted(
    diagnostic: Diagnostic, trace: Trace, batch: Batch, size: int, chosen: Sequence[int] | None = None
) -> None:
    """Feeds the pictures `chosen` (default all) of the batch in batches of `size`, as `measure` would, without `finish`."""
    places = list(range(len(batch)) if chosen is None else chosen)
    for start in range(0, len(places), size):
        part = places[start : start + size]
        with torch.inference_mode():
            tokens = {layer: values[part] for layer, values in trace.raw.items()}
            diagnostic.update(Trace(trace.backbone, tokens), collate([batch.samples[place] for place in part]))
