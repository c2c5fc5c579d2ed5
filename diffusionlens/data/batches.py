"""Pictures through a transform and into batches; what can't be read is skipped, counted and named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffusionlens.data.sample import Batch, PictureSource, Sample, Transform, UnreadablePicture
from diffusionlens.data.workers import ReadingProcesses
from diffusionlens.errors import InputError


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be used, and why."""

    index: int
    file: str
    reason: str


class PictureDataset(Dataset[Sample | Skipped | InputError]):
    """The pictures `indices` of a source, transformed; an unreadable one comes out as `Skipped`. What ends the run comes out as
    the error itself: raised in a worker, its one line would be lost in torch's report of it."""

    def __init__(self, source: PictureSource, transform: Transform, indices: Sequence[int]) -> None:
        self.source, self.transform, self.indices = source, transform, list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Sample | Skipped | InputError:
        index = self.indices[place]
        try:
            return self.transform(self.source.open(index), index)
        except UnreadablePicture as error:
            return Skipped(index, error.file, error.reason)
        except InputError as error:
            return error


def load_batches(
    source: PictureSource, transform: Transform, indices: Sequence[int], batch_size: int, workers: int = 0
) -> Iterator[tuple[Batch | None, list[Skipped]]]:
    """Batches in the order of `indices`, whatever the number of workers; None when no picture of a batch was readable.

    Raises:
        InputError: a worker process died, or the machine has run out of open files or memory.
    """
    loader = DataLoader(
        PictureDataset(source, transform, indices),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_pack,
        shuffle=False,
    )
    with ReadingProcesses[_Packed](loader, "--workers") as batches:
        for packed in batches:
            yield _unpack(packed)


# What is large travels stacked, in shared memory: one open file per batch and name. The many small tensors of a batch
# (boxes and their properties) travel by value, as arrays, since each would need an open file too and those run out.
_STACKED = ("image", "mask", "depth")


@dataclass
class _Packed:
    stacked: dict[str, Tensor]
    places: dict[str, list[int]]
    """Which samples have the tensors stacked under that name."""
    rest: list[dict[str, Any]]
    skipped: list[Skipped]
    refused: InputError | None


def _pack(items: list[Sample | Skipped | InputError]) -> _Packed:
    samples = [item for item in items if isinstance(item, Sample)]
    places = {key: _stackable([getattr(one, key) for one in samples]) for key in _STACKED}
    stacked = {key: torch.stack([getattr(samples[i], key) for i in found]) for key, found in places.items() if found}
    rest = []
    for place, sample in enumerate(samples):
        names = [entry.name for entry in fields(Sample) if place not in places.get(entry.name, ())]
        values = {name: getattr(sample, name) for name in names}
        rest.append({key: v.numpy() if isinstance(v, Tensor) else v for key, v in values.items()})
    refused = next((item for item in items if isinstance(item, InputError)), None)
    return _Packed(stacked, places, rest, [item for item in items if isinstance(item, Skipped)], refused)


def _stackable(values: Sequence[Tensor | None]) -> list[int]:
    """Places of the tensors, or none of them where they differ in size (labels as large as their pictures were)."""
    there = [place for place, value in enumerate(values) if value is not None]
    return there if len({values[place].shape for place in there}) == 1 else []  # type: ignore[union-attr]


def _unpack(packed: _Packed) -> tuple[Batch | None, list[Skipped]]:
    if packed.refused is not None:
        raise packed.refused
    if not packed.rest:
        return None, packed.skipped
    values: list[dict[str, Any]] = [
        {key: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for key, v in plain.items()}
        for plain in packed.rest
    ]
    for key, tensors in packed.stacked.items():
        for place, tensor in zip(packed.places[key], tensors, strict=True):
            values[place][key] = tensor
    return Batch(packed.stacked["image"], [Sample(**plain) for plain in values]), packed.skipped
