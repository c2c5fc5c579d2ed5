"""Which tile sizes, warps and pipeline stages every kernel is launched with: one table, for real launches and for the tests.

Chosen so that every kernel compiles for sm_90 without register spills (tests/attention/triton/test_compiled.py); none of it
has been tuned by time.
"""

from dataclasses import dataclass

import torch

MAX_HEAD_DIM = 256

FLOAT_CHUNK = 64
"""Columns that are contracted at once in float32."""


@dataclass(frozen=True)
class Tiling:
    """One launch: queries and keys per tile (at most, in the kernel that takes all keys), warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tilings:
    """The launches for one padded head dimension, one kind of element, with or without a mask.

    `rows` are launches of the kernel that keeps whole score rows in registers, each with the most keys that it fits; for more
    keys `stream` goes over them again and again.
    """

    rows: tuple[tuple[int, Tiling], ...]
    stream: Tiling
    backward_queries: Tiling
    backward_keys: Tiling

    def whole_rows(self, keys: int) -> Tiling | None:
        """The launch that takes `keys` keys at once, or None where they have to be streamed."""
        return next((tiling for most, tiling in self.rows if keys <= most), None)


def padded_width(head_dim: int) -> int:
    """The head dimension as the kernels hold it: a power of two, at least the 16 that a tensor core takes."""
    return max(16, 1 << (head_dim - 1).bit_length())


def key_tiles(count: int, widest: int) -> tuple[tuple[int, int], ...]:
    """(first key, width) of tiles that cover `count` keys, widths powers of two from 16 to `widest`, at most three below it.

    197 keys become 128 + 64 + 16: 208 instead of 256.
    """
    tiles: list[tuple[int, int]] = []
    first = 0
    while first < count:
        left = count - first
        width = min(widest, max(16, 1 << (left - 1).bit_length()))
        partial = sum(tile < widest for _, tile in tiles)
        if partial < 2 and width > 16 and width - left >= 16:
            width //= 2
        tiles.append((first, width))
        first += width
    return tuple(tiles)


def tail_width(count: int, tile: int) -> int:
    """Width of the tile for what is left behind whole tiles: a power of two from 16 on, 0 where nothing is left."""
    left = count % tile
    return 0 if left == 0 else max(16, 1 << (left - 1).bit_length())


_HALF = {
    64: Tilings(
        rows=((208, Tiling(64, 256, 4, 1)), (256, Tiling(32, 256, 4, 1))),
        stream=Tiling(64, 64, 4, 2),
        backward_queries=Tiling(64, 64, 4, 2),
        backward_keys=Tiling(64, 64, 4, 2),
    ),
    128: Tilings(
        rows=((256, Tiling(32, 256, 8, 1)),),
        stream=Tiling(64, 64, 8, 2),
        backward_queries=Tiling(64, 64, 8, 2),
        backward_keys=Tiling(64, 64, 8, 2),
    ),
    256: Tilings(
        rows=((256, Tiling(32, 256, 8, 1)),),
        stream=Tiling(16, 32, 8, 1),
        backward_queries=Tiling(64, 32, 8, 2),
        backward_keys=Tiling(16, 16, 8, 1),
    ),
}
# A mask's values and their 64-bit addresses want registers of their own.
_HALF_MASKED = {
    64: Tilings(
        rows=((208, Tiling(32, 256, 4, 1)),),
        stream=Tiling(64, 64, 8, 2),
        backward_queries=Tiling(64, 64, 4, 2),
        backward_keys=Tiling(64, 64, 4, 2),
    ),
    128: Tilings(
        rows=((208, Tiling(32, 256, 8, 1)),),
        stream=Tiling(32, 64, 8, 2),
        backward_queries=Tiling(64, 64, 8, 2),
        backward_keys=Tiling(64, 64, 8, 2),
    ),
    256: Tilings(
        rows=(),
        stream=Tiling(16, 32, 8, 1),
        backward_queries=Tiling(16, 32, 8, 1),
        backward_keys=Tiling(16, 16, 8, 1),
    ),
}
_FLOAT = {
    64: Tilings(
        rows=((256, Tiling(16, 64, 8, 1)),),
        stream=Tiling(32, 32, 8, 1),
        backward_queries=Tiling(32, 32, 8, 1),
        backward_keys=Tiling(32, 32, 8, 1),
    ),
    128: Tilings(
        rows=(),
        stream=Tiling(16, 32, 8, 1),
        backward_queries=Tiling(32, 32, 8, 1),
        backward_keys=Tiling(16, 16, 8, 1),
    ),
    256: Tilings(
        rows=(),
        stream=Tiling(16, 32, 8, 1),
        backward_queries=Tiling(16, 32, 8, 1),
        backward_keys=Tiling(16, 16, 8, 1),
    ),
}


def tilings(width: int, dtype: torch.dtype, *, masked: bool) -> Tilings:
    """The launches for heads padded to `width` columns."""
    if dtype == torch.float32:
        return _FLOAT[max(width, 64)]
    return (_HALF_MASKED if masked else _HALF)[max(width, 64)]
