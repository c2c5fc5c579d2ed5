"""How the kernels see a [B, H, rows, columns] tensor: a pointer with its strides, read and written block by block.

The last axis has stride 1; the others are free, so that q, k and v are read in place from a packed qkv projection. The
position of a (batch, head) pair is computed in 64 bits, positions inside one head in 32.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Heads(NamedTuple):
    """A tensor [B, H, rows, columns] and its strides in elements; a kernel receives it as one argument."""

    data: Any
    batch: Any
    head: Any
    row: Any
    column: Any


def heads_of(tensor: Tensor) -> Heads:
    """The view of `tensor` [B, H, rows, columns] that is handed to a kernel."""
    return Heads(tensor, *tensor.stride())


@triton.jit
def head_start(view, pair, heads):
    """Pointer to element [0, 0] of (batch, head) number `pair`."""
    batch = (pair // heads).to(tl.int64)
    head = (pair % heads).to(tl.int64)
    return view.data + batch * view.batch + head * view.head


@triton.jit
def load_rows(start, stride, rows, count, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Rows [R, WIDTH] of a head; rows from `count` on and columns from HEAD_DIM on are 0."""
    columns = tl.arange(0, WIDTH)
    inside = rows[:, None] < count
    if HEAD_DIM != WIDTH:
        inside = inside & (columns[None, :] < HEAD_DIM)
    return tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(start, stride, rows, count, block, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Writes the block [R, WIDTH] in the element type of the tensor; what lies outside is left out."""
    columns = tl.arange(0, WIDTH)
    inside = rows[:, None] < count
    if HEAD_DIM != WIDTH:
        inside = inside & (columns[None, :] < HEAD_DIM)
    tl.store(start + rows[:, None] * stride + columns[None, :], block.to(start.dtype.element_ty), mask=inside)


@triton.jit
def load_half_mask(mask, pair, heads, queries, query_count, keys, key_count):
    """Half of the additive mask in float32, in the shape that `queries` and `keys` broadcast to; 0 outside.

    One of the two is a column and the other a row of indices, so that a kernel gets it in the orientation of its scores.
    """
    start = head_start(mask, pair, heads)
    places = queries.to(tl.int64) * mask.row + keys.to(tl.int64) * mask.column
    inside = (queries < query_count) & (keys < key_count)
    return tl.load(start + places, mask=inside, other=0.0).to(tl.float32) * 0.5
