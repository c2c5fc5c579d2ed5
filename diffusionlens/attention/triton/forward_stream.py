"""Forward for rows too long for the chip: the scores are never stored but computed anew from Q and K in every pass.

One pass for the row maximum, some four for the threshold, one for the output. Tiles of KEYS keys, and a narrower one of TAIL
keys for the rest, so that only the last tile of a row looks where the row ends.
"""

import triton
import triton.language as tl

from diffusionlens.attention.triton.heads import head_start, load_half_mask, load_rows, store_rows
from diffusionlens.attention.triton.solve import is_finite, larger, largest, quadratic_step, roots, row_threshold


@triton.jit
def score_tile(
    query, key_start, key_stride, mask, half_scale, pair, heads, rows, query_count, first, key_count,
    SIZE: tl.constexpr, EDGE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Halved scaled scores [R, SIZE] of the keys from `first` on; -inf behind the last key, which only an EDGE tile can reach."""
    keys = first + tl.arange(0, SIZE)
    key = load_rows(key_start, key_stride, keys, key_count, HEAD_DIM, WIDTH)
    tile = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if mask is not None:
        half_mask = load_half_mask(mask, pair, heads, rows[:, None], query_count, keys[None, :], key_count)
        tile = tl.fma(tile, half_scale, half_mask)
    else:
        tile = tl.fma(tile, half_scale, 0.0)  # not `*`: that the compiler may fuse with a later subtraction
    if EDGE:
        tile = tl.where(keys[None, :] < key_count, tile, float("-inf"))
    return tile


@triton.jit
def tile_sums(scores, shift, tau, PTX: tl.constexpr):
    """Number of u > 0, sums of u and of u^2 over a tile."""
    u = roots(scores - shift[:, None], tau[:, None], PTX)
    return tl.sum(tl.where(u > 0.0, 1.0, 0.0), 1), tl.sum(u, 1), tl.sum(u * u, 1)


@triton.jit
def add_tile(
    scores, shift, tau, value_start, value_stride, first, key_count, result, mean, root_sum,
    SIZE: tl.constexpr, MEAN: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Adds P V, and for the backward U V and the sum of U, of a tile."""
    value = load_rows(value_start, value_stride, first + tl.arange(0, SIZE), key_count, HEAD_DIM, WIDTH)
    u = roots(scores - shift[:, None], tau[:, None], PTX)
    result = tl.dot((u * u).to(value.dtype), value, result, input_precision=PRECISION)
    if MEAN:
        mean = tl.dot(u.to(value.dtype), value, mean, input_precision=PRECISION)
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
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    TAIL: tl.constexpr,
    TOLERANCE: tl.constexpr,
    PRECISION: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: ROWS queries of one head against all keys."""
    blocks = tl.cdiv(query_count, ROWS)
    pair = tl.program_id(0) // blocks
    rows = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    query = load_rows(head_start(q, pair, heads), q.row, rows, query_count, HEAD_DIM, WIDTH)
    key_start = head_start(k, pair, heads)
    whole = key_count // KEYS * KEYS

    maximum = tl.full((ROWS,), float("-inf"), tl.float32)
    for first in range(0, whole, KEYS):
        scores = score_tile(
            query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, first, key_count,
            KEYS, False, HEAD_DIM, WIDTH, PRECISION,
        )  # fmt: skip
        maximum = larger(maximum, largest(scores, PTX))
    if TAIL > 0:
        scores = score_tile(
            query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, whole, key_count,
            TAIL, True, HEAD_DIM, WIDTH, PRECISION,
        )  # fmt: skip
        maximum = larger(maximum, largest(scores, PTX))
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
            scores = score_tile(
                query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, first, key_count,
                KEYS, False, HEAD_DIM, WIDTH, PRECISION,
            )  # fmt: skip
            number, root, weight = tile_sums(scores, shift, tau, PTX)
            support += number
            root_sum += root
            weight_sum += weight
        if TAIL > 0:
            scores = score_tile(
                query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, whole, key_count,
                TAIL, True, HEAD_DIM, WIDTH, PRECISION,
            )  # fmt: skip
            number, root, weight = tile_sums(scores, shift, tau, PTX)
            support += number
            root_sum += root
            weight_sum += weight
        excess = tl.abs(weight_sum - 1.0)
        quadratic, following, low, high = quadratic_step(tau, low, high, support, root_sum, weight_sum)
        tau = tl.where(excess < TOLERANCE, quadratic, following)
        error = tl.max(tl.where(live, excess, 0.0), 0)
        step += 1
    row = row_threshold(maximum, tau)
    tl.store(threshold + pair.to(tl.int64) * query_count + rows, row, mask=rows < query_count)

    value_start = head_start(v, pair, heads)
    MEAN: tl.constexpr = mean_value is not None
    result = tl.zeros((ROWS, WIDTH), tl.float32)
    mean = tl.zeros((ROWS, WIDTH), tl.float32)
    root_sum = tl.zeros((ROWS,), tl.float32)
    for first in range(0, whole, KEYS):
        scores = score_tile(
            query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, first, key_count,
            KEYS, False, HEAD_DIM, WIDTH, PRECISION,
        )  # fmt: skip
        result, mean, root_sum = add_tile(
            scores, shift, tau, value_start, v.row, first, key_count, result, mean, root_sum,
            KEYS, MEAN, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    if TAIL > 0:
        scores = score_tile(
            query, key_start, k.row, mask, half_scale, pair, heads, rows, query_count, whole, key_count,
            TAIL, True, HEAD_DIM, WIDTH, PRECISION,
        )  # fmt: skip
        result, mean, root_sum = add_tile(
            scores, shift, tau, value_start, v.row, whole, key_count, result, mean, root_sum,
            TAIL, MEAN, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    invalid = (row != row)[:, None]
    result = tl.where(invalid, float("nan"), result)
    store_rows(head_start(out, pair, heads), out.row, rows, query_count, result, HEAD_DIM, WIDTH)
    if MEAN:
        mean = mean / tl.where(root_sum > 0.0, root_sum, 1.0)[:, None]
        mean = tl.where(invalid, float("nan"), mean)
        store_rows(head_start(mean_value, pair, heads), mean_value.row, rows, query_count, mean, HEAD_DIM, WIDTH)
