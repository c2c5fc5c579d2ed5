"""A shelf gives back what was put on it, from the disk or from memory, in parts or as a whole."""

import gc
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from diffusionlens import shelf as module
from diffusionlens.errors import InputError
from diffusionlens.shelf import Shelf, Storage

RNG = np.random.default_rng(0)


def filled(batches: list[np.ndarray]) -> Shelf:
    shelf = Shelf()
    for batch in batches:
        shelf.append(batch)
    return shelf


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("waits", [1, 200, 10**6])
def test_columns(monkeypatch: pytest.MonkeyPatch, kind: type, waits: int) -> None:
    """Whether everything, some or nothing lies on the disk."""
    monkeypatch.setattr(module, "_BYTES", waits)
    batches = [(RNG.normal(size=(count, 7)) * 3).astype(kind) for count in (3, 1, 5, 0, 2)]
    shelf, whole = filled(batches), np.concatenate(batches)
    for _ in range(2):
        assert len(shelf) == 11
        for chosen in (slice(None), slice(2, 5), slice(6, 7), slice(0, 1), slice(5, 99), slice(4, 4)):
            found = shelf.columns(chosen)
            assert found.dtype == kind
            np.testing.assert_array_equal(found, whole[:, chosen])
        groups = shelf.settle()
        assert len(list(shelf.groups())) == groups
        np.testing.assert_array_equal(np.concatenate(list(shelf.groups())), whole)


def test_columns_are_neighbours() -> None:
    with pytest.raises(ValueError, match="neighbouring"):
        filled([np.ones((2, 6))]).columns(slice(0, 6, 2))


def test_nothing() -> None:
    assert Shelf().columns(slice(3, 5)).shape == (0, 0)
    assert len(Shelf()) == 0
    assert Shelf().settle() == 0


def test_rows_of_one_kind() -> None:
    shelf = filled([np.zeros((2, 3), np.float32)])
    for other in (np.zeros((2, 4), np.float32), np.zeros((2, 3))):
        with pytest.raises(ValueError, match="among rows of 3 float32"):
            shelf.append(other)
    fresh = Shelf()
    with pytest.raises(ValueError, match=r"wanted .rows, columns"):
        fresh.append(np.zeros(3))
    fresh.append(np.ones((2, 3)))
    assert fresh.columns().shape == (2, 3)


def test_one_storage_for_several_shelves_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    storage = Storage()
    shelves, rows = [Shelf(storage) for _ in range(4)], [RNG.normal(size=(6, 50, 9)) for _ in range(4)]
    for group in range(6):
        for shelf, own in zip(shelves, rows, strict=True):
            shelf.append(own[group])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda place: shelves[place % 4].columns(slice(2, 7)), range(200)))
    for place, values in enumerate(found):
        np.testing.assert_array_equal(values, rows[place % 4].reshape(-1, 9)[:, 2:7])


def test_a_copy_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    rows = RNG.normal(size=(4, 5))
    for copy in (deepcopy(filled([rows])), pickle.loads(pickle.dumps(filled([rows])))):
        np.testing.assert_array_equal(copy.columns(), rows)
    assert len(deepcopy(Shelf())) == 0


def test_what_is_appended_may_change_afterwards_once_settled() -> None:
    rows = np.ones((2, 3), np.float32)
    shelf = filled([rows])
    shelf.settle()
    rows[:] = 7
    assert shelf.columns().max() == 1


class Full:
    """A file on a disk that has room for `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.held = room, bytearray()
        self.place = 0

    def seek(self, place: int) -> None:
        self.place = place

    def write(self, data: memoryview) -> int:
        written = min(len(data), self.room - self.place)
        if not written:
            raise OSError(28, "No space left on device")
        self.held[self.place : self.place + written] = data[:written]
        self.place += written
        return written

    def close(self) -> None:
        pass

    def readinto(self, target: memoryview) -> int:
        found = self.held[self.place : self.place + min(len(target), 5)]  # a file may give less than it was asked for
        target[: len(found)] = found
        self.place += len(found)
        return len(found)


@pytest.mark.parametrize("room", [0, 1, 30, 60, 61, 200])
def test_a_full_disk_loses_nothing(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    file = Full(room)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: file)
    batches = [RNG.normal(size=(count, 5)).astype(np.float32) for count in (3, 1, 5)]
    shelf = filled(batches)
    np.testing.assert_array_equal(shelf.columns(slice(1, 4)), np.concatenate(batches)[:, 1:4])
    assert len(file.held) <= room


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    rows = RNG.normal(size=(4, 5))
    np.testing.assert_array_equal(filled([rows]).columns(), rows)


def test_a_file_that_lost_its_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    file = Full(1000)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: file)
    shelf = filled([np.ones((4, 5))])
    del file.held[-1:]
    with pytest.raises(InputError, match=r"cut short.*TMPDIR"):
        shelf.columns()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files by /proc")
def test_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()
    before = open_files()
    shelf = filled([np.ones((4, 5))])
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before + 1
    del shelf
    gc.collect()
    assert open_files() == before
