"""Batches: in order whatever the workers, unreadable pictures skipped and named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffusionlens.data import FitTransform, open_data
from diffusionlens.data.batches import load_batches

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
