"""Batches: in order whatever the workers, unreadable pictures skipped and named."""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data import FitTransform, open_data
from diffusionlens.data.batches import _pack, load_batches
from diffusionlens.data.sample import Picture, Sample
from diffusionlens.errors import InputError

TRANSFORM = FitTransform((32, 32), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize("workers", [0, 2])
def test_order_and_skips(workers: int, tmp_path: Path) -> None:
    for place in range(7):
        Image.fromarray(np.full((40, 40, 3), place * 20, np.uint8)).save(tmp_path / f"{place}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    source = open_data(f"folder:{tmp_path}")
    seen, skipped = [], []
    for batch, left in load_batches(source, TRANSFORM, [0, 2, 3, 4, 6], 2, workers):
        seen += [] if batch is None else [(s.index, round(float(s.image.mean()) * 255)) for s in batch.samples]
        skipped += [(entry.index, entry.reason) for entry in left]
    assert seen == [(0, 0), (2, 40), (4, 80), (6, 120)]
    assert skipped == [(3, "not a picture")]


def test_a_batch_of_unreadable_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    batches = list(load_batches(open_data(f"folder:{tmp_path}"), TRANSFORM, [0], 4))
    assert batches[0][0] is None
    assert len(batches[0][1]) == 1


class Annotated:
    """Pictures with boxes on all, masks on the even and depth on none; `fate` ends the process at the third."""

    label, spec = "annotated", "annotated"
    provides: frozenset[str] = frozenset({"boxes", "masks"})
    classes: Sequence[str] = ()
    skipped: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, fate: str = "live") -> None:
        self.fate = fate

    def __len__(self) -> int:
        return 6

    def name(self, index: int) -> str:
        return str(index)

    def open(self, index: int) -> Picture:
        if index == 2 and self.fate == "die":
            os._exit(3)
        return Picture(
            Image.new("RGB", (32, 32), (index, 0, 0)),
            str(index),
            label=index,
            boxes=torch.tensor([[0.0, 0.0, 8.0, 8.0 + index]] * index).reshape(-1, 4),
            category=torch.arange(index),
            crowd=torch.zeros(index, dtype=torch.bool),
            difficult=torch.ones(index, dtype=torch.bool),
            mask=torch.full((32, 32), index) if index % 2 == 0 else None,
            notes=("note",) * index,
        )


@pytest.mark.parametrize("workers", [0, 2])
def test_everything_travels(workers: int) -> None:
    """What comes out of the batches is what the transform made, field by field, from this process or another."""
    source, transform = Annotated(), FitTransform((32, 32), (0.5, 0.5, 0.5), (1.0, 1.0, 1.0), "squash")
    places = [5, 0, 3, 2, 4]
    batches = [batch for batch, _ in load_batches(source, transform, places, 2, workers) if batch is not None]
    samples = [sample for batch in batches for sample in batch.samples]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.images for batch in batches]), torch.stack([s.image for s in samples]))
    for sample, index in zip(samples, places, strict=True):
        expected = transform(source.open(index), index)
        for entry in fields(Sample):
            got, wanted = getattr(sample, entry.name), getattr(expected, entry.name)
            same = torch.equal(got, wanted) and got.dtype == wanted.dtype if torch.is_tensor(wanted) else got == wanted
            assert same, entry.name


def test_a_batch_needs_few_open_files() -> None:
    """Each tensor that passes between processes may hold a file open, and 64 pictures with 5 tensors each are too many."""
    items = [FitTransform((32, 32), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))(Annotated().open(i), i) for i in range(6)]
    packed = _pack(items)
    tensors = [value for plain in packed.rest for value in plain.values() if torch.is_tensor(value)]
    assert tensors == []
    assert set(packed.stacked) == {"image", "mask"}


def test_a_worker_that_dies_is_one_clear_line() -> None:
    with pytest.raises(InputError, match="a process that reads pictures died") as caught:
        list(load_batches(Annotated("die"), TRANSFORM, range(6), 2, 1))
    assert "\n" not in str(caught.value)


def test_a_needle_is_skipped_not_fatal(tmp_path: Path) -> None:
    Image.new("RGB", (1, 2100)).save(tmp_path / "a.png")
    transform = FitTransform((224, 224), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    ((batch, skipped),) = load_batches(open_data(f"folder:{tmp_path}"), transform, [0], 1)
    assert batch is None
    assert "too narrow" in skipped[0].reason
