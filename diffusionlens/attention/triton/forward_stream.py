"""Forward for rows too long for the chip: the scores are never stored but computed anew from Q and K in every pass.

One pass for the row maximum, some four for the threshold, one for the output. Tiles of KEYS keys, and a narrower one of TAIL
keys for the rest, so that only the last tile of a row looks where the row ends; or, CHECKED, one kind of tile that always does.
"""

import triton
import triton.language as tl

from diffusionlens.attention.triton.heads import head_start, load_half_mask, load_rows, row_products, store_rows
from diffusionlens.attention.triton.solve import is_finite, larger, largest, quadratic_step, roots, row_threshold


@triton.jit
def score_tile(row_block, first, SIZE: tl.constexpr, EDGE: tl.constexpr, SHAPE: tl.constexpr):
    """Halved scaled scores [R, SIZE] of the keys from `first` on; -inf behind the last key, which only an EDGE tile can reach."""
    query, queries, key_start, key_stride, key_count, mask, half_scale, pair, heads = row_block
    keys = first + tl.arange(0, SIZE)
    tile = row_products(query, queries, (key_start, key_stride, keys, key_count), (query.shape[0], SIZE), SHAPE)
    if mask is not None:
        half_mask = load_half_mask(mask, pair, heads, queries[2][:, None], queries[3], keys[None, :], key_count)
        tile = tl.fma(tile, half_scale, half_mask)
    else:
        tile = tl.fma(tile, half_scale, 0.0)  # not `*`: that the compiler may fuse with a later subtraction
    if EDGE:
        tile = tl.where(keys[None, :] < key_count, tile, float("-inf"))
    return tile


@triton.jit
def raise_maximum(
    row_block, first, maximum, SIZE: tl.constexpr, EDGE: tl.constexpr, SHAPE: tl.constexpr, PTX: tl.constexpr
):
    """The row maxima with those of a tile."""
    return larger(maximum, largest(score_tile(row_block, first, SIZE, EDGE, SHAPE), PTX))


@triton.jit
def add_sums(
    row_block, first, shift, tau, support, root_sum, weight_sum,
    SIZE: tl.constexpr, EDGE: tl.constexpr, SHAPE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Number of u > 0, sums of u and of u^2 with those of a tile."""
    u = roots(score_tile(row_block, first, SIZE, EDGE, SHAPE) - shift[:, None], tau[:, None], PTX)
    support += tl.sum(tl.where(u > 0.0, 1.0, 0.0), 1)
    return support, root_sum + tl.sum(u, 1), weight_sum + tl.sum(u * u, 1)


@triton.jit
def add_output(
    row_block, first, shift, tau, value_start, value_stride, result, mean, root_sum,
    MEAN: tl.constexpr, SIZE: tl.constexpr, EDGE: tl.constexpr, SHAPE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """P V, and for the backward U V and the sum of U, with those of a tile."""
    u = roots(score_tile(row_block, first, SIZE, EDGE, SHAPE) - shift[:, None], tau[:, None], PTX)
    value = load_rows((value_start, value_stride, first + tl.arange(0, SIZE), row_block[4]), SHAPE)
    result = tl.dot((u * u).to(value.dtype), value, result, input_precision="ieee")
    if MEAN:
        mean = tl.dot(u.to(value.dtype), value, mean, input_precision="ieee")
        root_sum += tl.sum(u, 1)
    return result, mean, root_sum


@triton.jit
def forward_stream(
    q,
    k,
    v,
    mask,
    out,
    mean_value,
    threshold,
    half_scale,
    heads,
    query_count,
    key_count,
    SHAPE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    TAIL: tl.constexpr,
    CHECKED: tl.constexpr,
    TOLERANCE: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: ROWS queries of one head against all keys."""
    blocks = tl.cdiv(query_count, ROWS)
    pair = tl.program_id(0) // blocks
    rows = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    queries = (head_start(q, pair, heads), q.row, rows, query_count)
    query = load_rows(queries, SHAPE)
    row_block = (query, queries, head_start(k, pair, heads), k.row, key_count, mask, half_scale, pair, heads)
    whole = key_count if CHECKED else key_count // KEYS * KEYS

    maximum = tl.full((ROWS,), float("-inf"), tl.float32)
    for first in range(0, whole, KEYS):
        maximum = raise_maximum(row_block, first, maximum, KEYS, CHECKED, SHAPE, PTX)
    if TAIL > 0:
        maximum = raise_maximum(row_block, whole, maximum, TAIL, True, SHAPE, PTX)
    live = is_finite(maximum)
    shift = tl.where(live, maximum, 0.0)

    tau = tl.full((ROWS,), -1.0, tl.float32)
    low = tau
    high = tl.zeros((ROWS,), tl.float32)
    step = 0
    error = 1.0
    while (step < 32) & (error > TOLERANCE):  # four to five steps are usual; 32 is out of reach and only ends a fault
        support = tl.zeros((ROWS,), tl.float32)
        root_sum = tl.zeros((ROWS,), tl.float32)
        weight_sum = tl.zeros((ROWS,), tl.float32)
        for first in range(0, whole, KEYS):
            support, root_sum, weight_sum = add_sums(
                row_block, first, shift, tau, support, root_sum, weight_sum, KEYS, CHECKED, SHAPE, PTX
            )
        if TAIL > 0:
            support, root_sum, weight_sum = add_sums(
                row_block, whole, shift, tau, support, root_sum, weight_sum, TAIL, True, SHAPE, PTX
            )
        excess = tl.abs(weight_sum - 1.0)
        quadratic, following, low, high = quadratic_step(tau, low, high, support, root_sum, weight_sum)
        tau = tl.where(excess < TOLERANCE, quadratic, following)
        error = tl.max(tl.where(live, excess, 0.0), 0)
        step += 1
    row = row_threshold(maximum, tau)
    tl.store(threshold + pair.to(tl.int64) * query_count + rows, row, mask=rows < query_count)

    MEAN: tl.constexpr = mean_value is not None
    value_start = head_start(v, pair, heads)
    result = tl.zeros((ROWS, SHAPE.width), tl.float32)
    mean = tl.zeros((ROWS, SHAPE.width), tl.float32)
    root_total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, whole, KEYS):
        result, mean, root_total = add_output(
            row_block, first, shift, tau, value_start, v.row, result, mean, root_total, MEAN, KEYS, CHECKED, SHAPE, PTX
        )
    if TAIL > 0:
        result, mean, root_total = add_output(
            row_block, whole, shift, tau, value_start, v.row, result, mean, root_total, MEAN, TAIL, True, SHAPE, PTX
        )
    invalid = (row != row)[:, None]
    result = tl.where(invalid, float("nan"), result)
    store_rows((head_start(out, pair, heads), out.row, rows, query_count), result, SHAPE)
    if MEAN:
        mean = mean / tl.where(root_total > 0.0, root_total, 1.0)[:, None]
        mean = tl.where(invalid, float("nan"), mean)
        store_rows((head_start(mean_value, pair, heads), mean_value.row, rows, query_count), mean, SHAPE)
