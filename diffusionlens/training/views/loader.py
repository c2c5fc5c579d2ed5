"""Pictures to batches of views, in worker processes; what can't be read is replaced, counted and named."""

import signal
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffusionlens.data import PictureSource, UnreadablePicture
from diffusionlens.data.workers import ReadingProcesses
from diffusionlens.errors import InputError
from diffusionlens.training.views.sampler import RunSampler, SampleKey

Crops = Callable[[Image.Image, int, int], Sequence[Tensor]]
"""(picture, epoch, index) to its views, each [3,H,W]; what is random in it follows from the two numbers and the run's seed."""

_TRIES = 50  # pictures tried in place of one that can't be read, before the data are given up


@dataclass(frozen=True)
class ViewBatch:
    """`views`: one tensor [B,3,H,W] a view. `keys`: whose they are. `skipped`: unreadable files met, with the reasons.
    `refused`: why there are no more batches."""

    views: list[Tensor]
    keys: list[SampleKey]
    skipped: list[tuple[str, str]]
    refused: InputError | None = None

    def pin_memory(self) -> "ViewBatch":  # called by the loader
        return replace(self, views=[view.pin_memory() for view in self.views])


_Item = tuple[Sequence[Tensor], SampleKey, list[tuple[str, str]]]


class ViewDataset(Dataset[_Item | InputError]):
    """The pictures of a source as views, with what was skipped on the way. In place of an unreadable one comes the next
    readable one, so that every batch has its size; no views when there is none far and wide. What ends the run comes out as
    the error itself (see `PictureDataset`)."""

    def __init__(self, source: PictureSource, crops: Crops) -> None:
        self.source, self.crops = source, crops

    def __getitem__(self, key: SampleKey) -> _Item | InputError:
        skipped: list[tuple[str, str]] = []
        for shift in range(min(_TRIES, len(self.source))):
            index = (key.index + shift) % len(self.source)
            try:
                picture = self.source.open(index)
            except UnreadablePicture as error:
                skipped.append((error.file, error.reason))
                continue
            except InputError as error:
                return error
            return self.crops(picture.image, key.epoch, index), SampleKey(key.epoch, index), skipped
        return [], key, skipped


def load_views(
    source: PictureSource, crops: Crops, sampler: RunSampler, workers: int, device: torch.device
) -> Generator[ViewBatch]:
    """The batches of `sampler`, in its order whatever the number of workers.

    Raises:
        InputError: a worker died, too many pictures can't be read, or the machine has run out of open files or memory.
    """
    loader = DataLoader(
        ViewDataset(source, crops),
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        worker_init_fn=_start_worker,
        persistent_workers=False,
        prefetch_factor=4 if workers else None,
        generator=torch.Generator(),  # its own, so that starting workers draws nothing from the run's random numbers
    )
    with ReadingProcesses[ViewBatch](loader, "--set run.workers=N") as batches:
        for batch in batches:
            if batch.refused is not None:
                raise batch.refused
            if not batch.views:
                file, reason = batch.skipped[0]
                raise InputError(
                    f"{len(batch.skipped)} pictures in a row can't be read, from {file} ({reason}) on; look at the data with "
                    f"`diffusionlens check`"
                )
            yield batch


def _collate(given: list[_Item | InputError]) -> ViewBatch:
    items: list[_Item] = []
    for item in given:
        if isinstance(item, InputError):
            return ViewBatch([], [], [], item)
        items.append(item)
    for views, key, skipped in items:
        if not views:
            return ViewBatch([], [key], skipped)
    stacked = [torch.stack(list(view)) for view in zip(*(views for views, _, _ in items), strict=True)]
    return ViewBatch(stacked, [key for _, key, _ in items], [entry for _, _, skipped in items for entry in skipped])


def _start_worker(_: Any) -> None:
    """One thread, and deaf to the signals that tell the run to stop: it lets its workers go itself, after its checkpoint."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
