"""Which tile sizes, warps and pipeline stages every kernel is launched with: one table, for real launches and for the tests.

Chosen so that every kernel compiles for sm_90 without register spills (tests/attention/triton/test_compiled.py); none of it
has been tuned by time.
"""

from dataclasses import dataclass

import torch

ROWS_ON_CHIP = 256
"""The most keys for which a whole score row is kept in registers."""

MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Tiling:
    """One launch: queries and keys per tile (keys is 0 where a kernel takes them all), warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tilings:
    """The launches for one padded head dimension and one kind of element."""

    forward_rows: Tiling
    forward_stream: Tiling
    backward_queries: Tiling
    backward_keys: Tiling


def padded_width(head_dim: int) -> int:
    """The head dimension as the kernels hold it: a power of two, at least the 16 that a tensor core takes."""
    return max(16, 1 << (head_dim - 1).bit_length())


def key_tiles(count: int) -> tuple[tuple[int, int], ...]:
    """At most three (first key, width) tiles that cover `count` keys, widths powers of two from 16 on.

    197 keys become 128 + 64 + 16: 208 instead of 256.
    """
    tiles: list[tuple[int, int]] = []
    first = 0
    while first < count:
        left = count - first
        width = max(16, 1 << (left - 1).bit_length())
        half = width // 2
        last = len(tiles) == 2
        if not last and half >= 16 and width - left >= 16:
            width = half
        tiles.append((first, width))
        first += width
    return tuple(tiles)


def tail_width(count: int, tile: int) -> int:
    """Width of the tile for what is left behind whole tiles: a power of two from 16 on, 0 where nothing is left."""
    left = count % tile
    return 0 if left == 0 else max(16, 1 << (left - 1).bit_length())


_HALF = {
    64: Tilings(Tiling(64, 0, 4, 1), Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2), Tiling(64, 64, 4, 2)),
    128: Tilings(Tiling(64, 0, 8, 1), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2)),
    256: Tilings(Tiling(64, 0, 8, 1), Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 1), Tiling(32, 64, 8, 1)),
}
_FLOAT = {
    64: Tilings(Tiling(32, 0, 8, 1), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1), Tiling(32, 32, 4, 1)),
    128: Tilings(Tiling(32, 0, 8, 1), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1)),
    256: Tilings(Tiling(16, 0, 8, 1), Tiling(16, 32, 8, 1), Tiling(16, 32, 8, 1), Tiling(32, 16, 8, 1)),
}


def tilings(width: int, dtype: torch.dtype) -> Tilings:
    """The launches for heads padded to `width` columns."""
    return (_FLOAT if dtype == torch.float32 else _HALF)[max(width, 64)]
