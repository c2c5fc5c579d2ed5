"""Rows of numbers, one row a picture, that wait on the disk until they are read column by column."""

import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]

_BYTES = 2**21
"""How much waits in memory before it is written: less makes many small reads, more takes memory."""


class Shelf:
    """A table of numbers that grows by rows and is read by columns; all rows have one width and one type.

    It lies in a temporary file without a name (in TMPDIR), so that memory does not grow with the number of pictures and
    nothing is left behind, however the program ends. Rows that came together lie there column after column, so that some
    columns of all rows are a few large reads. Where no file can be written to, or the disk is full, rows stay in memory:
    what took hours to measure is not lost for want of room.
    """

    def __init__(self) -> None:
        self._waiting: list[Numbers] = []
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None
        self._on_disk = True
        self._groups: list[tuple[int, int] | Numbers] = []
        """Rows in their order: place in the file and how many, or the rows themselves."""
        self._end = 0
        self._like: Numbers | None = None

    def __len__(self) -> int:
        return sum(group[1] if isinstance(group, tuple) else len(group) for group in [*self._groups, *self._waiting])

    def append(self, rows: Numbers) -> None:
        """Adds rows [B,C]."""
        if self._like is None:
            self._like = rows[:0].copy()
        if rows.ndim != 2 or rows.shape[1] != self._like.shape[1] or rows.dtype != self._like.dtype:
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
        if self._file is None:
            # Unbuffered, so that a full disk is an error now and not at some later call; closed with the shelf.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        place = self._end
        self._file.seek(place)
        left = np.ascontiguousarray(rows.T).reshape(-1).view(np.uint8).data
        while left:
            left = left[self._file.write(left) :]
        self._end = place + rows.nbytes
        return place, len(rows)

    def columns(self, chosen: slice = slice(None)) -> Numbers:
        """Some neighbouring columns of all rows, [rows,c]; of a shelf that nothing was put on, [0,0].

        Raises:
            OSError: the disk does not give back what was written.
        """
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
        assert self._file is not None
        assert self._like is not None
        found = np.empty((max(0, stop - start), count), self._like.dtype)
        self._file.seek(place + start * count * self._like.itemsize)
        left = found.reshape(-1).view(np.uint8).data
        while left:
            got = self._file.readinto(left)  # type: ignore[attr-defined]
            if not got:
                raise OSError("a temporary file was cut short")
            left = left[got:]
        return found.T

    def groups(self) -> Iterator[Numbers]:
        """All settled rows in their order, a few MiB at a time."""
        width = 0 if self._like is None else self._like.shape[1]
        for group in self._groups:
            yield self._read(*group, 0, width) if isinstance(group, tuple) else group
