"""Rows of numbers, one row a picture, that wait on the disk until they are read column by column."""

import tempfile
import weakref
from collections.abc import Iterator
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diffusionlens.errors import InputError, in_short

Numbers = NDArray[Any]

_BYTES = 2**21
"""How much waits in memory before it is written: less makes many small reads, more takes memory."""


class Storage:
    """A temporary file without a name (in TMPDIR) that several shelves share; it is opened when there is something to write, and
    gone with the last of them, however the program ends."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._turn = Lock()  # place and reading or writing there belong together

    def write(self, data: memoryview) -> int:
        """Writes all of `data`; returns its place.

        Raises:
            OSError: there is no room, or no place for temporary files.
        """
        with self._turn:
            if self._file is None:
                # Unbuffered, so that a full disk is an error now and not at some later call.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            place = self._end
            self._file.seek(place)
            left = data
            while left:
                left = left[self._file.write(left) :]
            self._end = place + len(data)
            return place

    def read(self, place: int, target: memoryview) -> None:
        """Fills `target` with what lies at `place`.

        Raises:
            InputError: the disk does not give back what was written.
        """
        with self._turn:
            assert self._file is not None
            try:
                self._file.seek(place)
                while target:
                    got = self._file.readinto(target)  # type: ignore[attr-defined]
                    if not got:
                        raise OSError("it was cut short")
                    target = target[got:]
            except OSError as error:
                raise InputError(
                    f"the values of single pictures could not be read back from their temporary file in "
                    f"{tempfile.gettempdir()} ({in_short(error)}); run again with TMPDIR set to a folder on a sound disk"
                ) from None


class Shelf:
    """A table of numbers that grows by rows and is read by columns; all rows have one width and one type.

    It lies in `storage` (its own, where none is given), so that memory does not grow with the number of pictures. Rows that came
    together lie there column after column, so that some columns of all rows are a few large reads. Where no file can be
    written to, or the disk is full, rows stay in memory: what took hours to measure is not lost for want of room. A shelf belongs
    to the process that made it; pickled or copied, it is a table in memory.
    """

    def __init__(self, storage: Storage | None = None) -> None:
        self._storage = storage or Storage()
        self._waiting: list[Numbers] = []
        self._waiting_bytes = 0
        self._on_disk = True
        self._groups: list[tuple[int, int] | Numbers] = []
        """Rows in their order: place in the file and how many, or the rows themselves."""
        self._like: Numbers | None = None

    def __getstate__(self) -> Numbers | None:
        return None if self._like is None else self.columns()

    def __setstate__(self, rows: Numbers) -> None:
        self.__init__()  # type: ignore[misc]
        self.append(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__()
        return (Shelf, ()) if state is None else (Shelf, (), state)

    def __len__(self) -> int:
        return sum(group[1] if isinstance(group, tuple) else len(group) for group in [*self._groups, *self._waiting])

    def append(self, rows: Numbers) -> None:
        """Adds rows [B,C]."""
        if rows.ndim != 2:
            raise ValueError(f"rows {rows.shape}; wanted [rows, columns]")
        if self._like is None:
            self._like = rows[:0].copy()
        if rows.shape[1] != self._like.shape[1] or rows.dtype != self._like.dtype:
            raise ValueError(
                f"rows {rows.shape} of {rows.dtype} among rows of {self._like.shape[1]} {self._like.dtype}"
            )
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _BYTES:
            self.settle()

    def settle(self) -> int:
        """Puts away what waits in memory; returns in how many groups all rows lie then."""
        if self._waiting:
            self._put_away(np.concatenate(self._waiting))
            self._waiting, self._waiting_bytes = [], 0
        return len(self._groups)

    def _put_away(self, rows: Numbers) -> None:
        group: tuple[int, int] | Numbers = rows
        if self._on_disk:
            try:
                group = self._write(rows)
            except OSError:
                self._on_disk = False
        self._groups.append(group)

    def _write(self, rows: Numbers) -> tuple[int, int]:
        return self._storage.write(np.ascontiguousarray(rows.T).reshape(-1).view(np.uint8).data), len(rows)

    def columns(self, chosen: slice = slice(None)) -> Numbers:
        """Some neighbouring columns of all rows, [rows,c]; of a shelf that nothing was put on, [0,0].

        Raises:
            InputError: the disk does not give back what was written.
            ValueError: the columns are no neighbours.
        """
        if chosen.step not in (None, 1):
            raise ValueError(f"columns {chosen.start}:{chosen.stop}:{chosen.step}; wanted neighbouring columns, step 1")
        if self._like is None:
            return np.zeros((0, 0), np.float32)
        start, stop, _ = chosen.indices(self._like.shape[1])
        found = np.empty((len(self), max(0, stop - start)), self._like.dtype)
        first = 0
        for group in [*self._groups, *self._waiting]:
            rows = self._read(*group, start, stop) if isinstance(group, tuple) else group[:, start:stop]
            found[first : first + len(rows)] = rows
            first += len(rows)
        return found

    def _read(self, place: int, count: int, start: int, stop: int) -> Numbers:
        assert self._like is not None
        found = np.empty((max(0, stop - start), count), self._like.dtype)
        self._storage.read(place + start * count * self._like.itemsize, found.reshape(-1).view(np.uint8).data)
        return found.T

    def groups(self) -> Iterator[Numbers]:
        """All settled rows in their order, a few MiB at a time."""
        width = 0 if self._like is None else self._like.shape[1]
        for group in self._groups:
            yield self._read(*group, 0, width) if isinstance(group, tuple) else group
