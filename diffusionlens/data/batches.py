"""Pictures through a transform and into batches; what can't be read is skipped, counted and named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch.utils.data import DataLoader, Dataset

from diffusionlens.data.sample import Batch, PictureSource, Sample, Transform, UnreadablePicture, collate
from diffusionlens.errors import InputError


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be used, and why."""

    index: int
    file: str
    reason: str


class PictureDataset(Dataset[Sample | Skipped]):
    """The pictures `indices` of a source, transformed; an unreadable one comes out as `Skipped`."""

    def __init__(self, source: PictureSource, transform: Transform, indices: Sequence[int]) -> None:
        self.source, self.transform, self.indices = source, transform, list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Sample | Skipped:
        index = self.indices[place]
        try:
            return self.transform(self.source.open(index), index)
        except UnreadablePicture as error:
            return Skipped(index, error.file, error.reason)


def load_batches(
    source: PictureSource, transform: Transform, indices: Sequence[int], batch_size: int, workers: int = 0
) -> Iterator[tuple[Batch | None, list[Skipped]]]:
    """Batches in the order of `indices`, whatever the number of workers; None when no picture of a batch was readable.

    Raises:
        InputError: a worker process died.
    """
    loader = DataLoader(
        PictureDataset(source, transform, indices),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_separate,
        shuffle=False,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" in str(error):
            raise InputError(
                f"a process that reads pictures died ({' '.join(str(error).split())[:120]}); it may have run out of "
                f"memory: use fewer --workers"
            ) from None
        raise


def _separate(items: list[Sample | Skipped]) -> tuple[Batch | None, list[Skipped]]:
    samples = [item for item in items if isinstance(item, Sample)]
    skipped = [item for item in items if isinstance(item, Skipped)]
    return (collate(samples) if samples else None), skipped
