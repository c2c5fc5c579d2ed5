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


class Shape(NamedTuple):
    """Compile-time widths: of a head, of its block (a power of two), and of the pieces in which it is contracted."""

    head_dim: int
    width: int
    chunk: int


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
def offsets_in_head(block, columns, SHAPE: tl.constexpr):
    """Pointers of block x columns, and which of them lie inside the head."""
    start, stride, rows, count = block
    inside = rows[:, None] < count
    if SHAPE.head_dim != SHAPE.width:
        inside = inside & (columns[None, :] < SHAPE.head_dim)
    return start + rows[:, None] * stride + columns[None, :], inside


@triton.jit
def load_rows(block, SHAPE: tl.constexpr):
    """[R, width] of a block (start of the head, row stride, rows [R], number of rows there are); 0 outside the head."""
    pointers, inside = offsets_in_head(block, tl.arange(0, SHAPE.width), SHAPE)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(block, content, SHAPE: tl.constexpr):
    """Writes `content` [R, width] in the element type of the tensor; what lies outside the head is left out."""
    pointers, inside = offsets_in_head(block, tl.arange(0, SHAPE.width), SHAPE)
    tl.store(pointers, content.to(pointers.dtype.element_ty), mask=inside)


@triton.jit
def row_products(content, block, other, SIZES: tl.constexpr, SHAPE: tl.constexpr):
    """Every row of `block` times every row of `other`, SIZES = [R, S], in float32; `content` is the former, loaded.

    Where SHAPE.chunk is less than the width, both are read again in narrow pieces: float32 is multiplied outside the tensor
    cores, and wide pieces do not fit into the registers there.
    """
    if SHAPE.chunk == SHAPE.width:
        result = tl.dot(content, tl.trans(load_rows(other, SHAPE)), input_precision="ieee")
    else:
        result = tl.zeros(SIZES, tl.float32)
        for column in range(0, SHAPE.width, SHAPE.chunk):
            columns = column + tl.arange(0, SHAPE.chunk)
            pointers, inside = offsets_in_head(block, columns, SHAPE)
            left = tl.load(pointers, mask=inside, other=0.0)
            pointers, inside = offsets_in_head(other, columns, SHAPE)
            right = tl.load(pointers, mask=inside, other=0.0)
            result = tl.dot(left, tl.trans(right), result, input_precision="ieee")
    return result


@triton.jit
def load_half_mask(mask, pair, heads, queries, query_count, keys, key_count):
    """Half of the additive mask in float32, in the shape that `queries` and `keys` broadcast to; 0 outside.

    One of the two is a column and the other a row of indices, so that a kernel gets it in the orientation of its scores.
    """
    start = head_start(mask, pair, heads)
    places = queries * mask.row + keys * mask.column
    inside = (queries < query_count) & (keys < key_count)
    return tl.load(start + places, mask=inside, other=0.0).to(tl.float32) * 0.5
