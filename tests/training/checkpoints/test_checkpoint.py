"""Checkpoints are whole or not there, hold no code, and put every random generator back."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffusionlens.errors import InputError
from diffusionlens.training.checkpoints.checkpoint import (
    KEYS,
    link_or_copy,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_everything,
    write_whole,
)

CPU = torch.device("cpu")


def content(step: int, size: int = 10) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(KEYS, None)
    return values | {"format": 1, "step": step, "student": {"w": torch.arange(size)}, "random": [random_state(CPU)]}


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(())), float(np.random.randn())]


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", content(3))
    read = load_checkpoint(tmp_path / "last.pt")
    assert read["step"] == 3
    assert torch.equal(read["student"]["w"], torch.arange(10))
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    seed_everything(0, 0, 0)
    draw()  # NumPy's normal keeps a second value back: that too
    save_checkpoint(tmp_path / "last.pt", content(3))
    first = draw()
    seed_everything(1, 1, 1)
    assert draw() != first
    restore_random_state(load_checkpoint(tmp_path / "last.pt")["random"][0], CPU)
    assert draw() == first


def test_seeds_differ_by_rank_and_start() -> None:
    drawn = []
    for key in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)):
        seed_everything(*key)
        drawn.append(tuple(draw()))
    assert len(set(drawn)) == 4
    seed_everything(0, 1, 0)
    assert tuple(draw()) == drawn[1]


_FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.training.checkpoints.test_checkpoint import content
from diffusionlens.errors import InputError
from diffusionlens.training.checkpoints.checkpoint import save_checkpoint
save_checkpoint(Path("last.pt"), content(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(Path("last.pt"), content(2, 1_000_000))
except InputError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(tmp_path: Path) -> None:
    """No file may grow beyond a limit: the operating system refuses to write, as on a full disk."""
    code = _FULL_DISK.format(root=str(Path(__file__).parents[3]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "last.pt could not be written" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_write_that_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def broken(file: Any) -> None:
        file.write(b"after, and then")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device"):
        write_whole(path, broken)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_outlives_the_next_write(tmp_path: Path) -> None:
    last, kept = tmp_path / "last.pt", tmp_path / "epoch_0001.pt"
    save_checkpoint(last, content(1))
    link_or_copy(last, kept)
    link_or_copy(last, kept)  # again, as a resumed run does
    save_checkpoint(last, content(2))
    assert load_checkpoint(kept)["step"] == 1
    assert load_checkpoint(last)["step"] == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"student": {}}, tmp_path / "dino.pt")
    with pytest.raises(InputError, match="not a checkpoint of a training run"):
        load_checkpoint(tmp_path / "dino.pt")
    save_checkpoint(tmp_path / "cut.pt", content(1))
    cut = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(InputError, match="not a whole weights file"):
        load_checkpoint(tmp_path / "cut.pt")
    save_checkpoint(tmp_path / "new.pt", content(1) | {"format": 2})
    with pytest.raises(InputError, match="format 2"):
        load_checkpoint(tmp_path / "new.pt")
