"""Forward with the whole score row on chip, for up to 256 keys: Q K^T once, the threshold solved in registers, then P V.

The keys are split into at most three tiles whose widths are powers of two (197 = 128 + 64 + 16 of which 11 are padding).
Some quadratic steps, which need the support, bring every row close; Newton steps, which do without it, finish the block.
"""

import triton
import triton.language as tl

from diffusionlens.attention.triton.heads import head_start, load_half_mask, load_rows, row_products, store_rows
from diffusionlens.attention.triton.solve import (
    is_finite,
    larger,
    largest,
    newton_step,
    quadratic_step,
    roots,
    row_threshold,
)


@triton.jit
def row_sums(scores, tau, PTX: tl.constexpr):
    """Sums of u and of u^2 over all tiles of a row."""
    root_sum = tl.zeros_like(tau)
    weight_sum = tl.zeros_like(tau)
    for i in tl.static_range(len(scores)):
        u = roots(scores[i], tau[:, None], PTX)
        root_sum += tl.sum(u, 1)
        weight_sum += tl.sum(u * u, 1)
    return root_sum, weight_sum


@triton.jit
def row_sums_with_support(scores, tau, PTX: tl.constexpr):
    """Number of u > 0, sums of u and of u^2 over all tiles of a row."""
    support = tl.zeros_like(tau)
    root_sum = tl.zeros_like(tau)
    weight_sum = tl.zeros_like(tau)
    for i in tl.static_range(len(scores)):
        u = roots(scores[i], tau[:, None], PTX)
        support += tl.sum(tl.where(u > 0.0, 1.0, 0.0), 1)
        root_sum += tl.sum(u, 1)
        weight_sum += tl.sum(u * u, 1)
    return support, root_sum, weight_sum


@triton.jit
def solve_rows(scores, live, QUADRATIC_STEPS: tl.constexpr, TOLERANCE: tl.constexpr, PTX: tl.constexpr):
    """tau [R] of scores whose row maxima are 0; the rows that are not `live` are not waited for."""
    tau = tl.full(live.shape, -1.0, tl.float32)
    low = tau
    high = tl.zeros_like(tau)
    for _ in tl.static_range(QUADRATIC_STEPS):
        support, root_sum, weight_sum = row_sums_with_support(scores, tau, PTX)
        _, tau, low, high = quadratic_step(tau, low, high, support, root_sum, weight_sum)
    step = 0
    error = 1.0
    while (step < 32) & (error > TOLERANCE):  # three steps are usual; 32 is out of reach and only ends a fault
        root_sum, weight_sum = row_sums(scores, tau, PTX)
        tau = newton_step(tau, root_sum, weight_sum)
        error = tl.max(tl.where(live, tl.abs(weight_sum - 1.0), 0.0), 0)
        step += 1
    return tau


@triton.jit
def forward_rows(
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
    TILES: tl.constexpr,
    SCALE_LATE: tl.constexpr,
    QUADRATIC_STEPS: tl.constexpr,
    TOLERANCE: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: ROWS queries of one head against all keys. TILES are (first key, number of keys) of every tile.

    SCALE_LATE (half_scale a positive power of two, no mask) scales and shifts in one instruction; that is exact only there, and
    the maximum of a row must become exactly 0 for a row of one key to weigh exactly 1.
    """
    blocks = tl.cdiv(query_count, ROWS)
    pair = tl.program_id(0) // blocks
    rows = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    queries = (head_start(q, pair, heads), q.row, rows, query_count)
    query = load_rows(queries, SHAPE)
    key_start = head_start(k, pair, heads)

    products = ()
    maximum = tl.full((ROWS,), float("-inf"), tl.float32)
    for i in tl.static_range(len(TILES)):
        keys = TILES[i][0] + tl.arange(0, TILES[i][1])
        tile = row_products(query, queries, (key_start, k.row, keys, key_count), (ROWS, TILES[i][1]), SHAPE)
        if mask is not None:
            half_mask = load_half_mask(mask, pair, heads, rows[:, None], query_count, keys[None, :], key_count)
            tile = tl.fma(tile, half_scale, half_mask)
        elif not SCALE_LATE:
            tile = tl.fma(tile, half_scale, 0.0)  # not `*`: that the compiler may fuse with the subtraction below
        if i == len(TILES) - 1:
            tile = tl.where(keys[None, :] < key_count, tile, float("-inf"))
        maximum = larger(maximum, largest(tile, PTX))
        products = products + (tile,)
    if SCALE_LATE:
        maximum *= half_scale
    live = is_finite(maximum)
    shift = tl.where(live, maximum, 0.0)[:, None]
    scores = ()
    for i in tl.static_range(len(TILES)):
        if SCALE_LATE:
            scores = scores + (tl.fma(products[i], half_scale, -shift),)
        else:
            scores = scores + (products[i] - shift,)

    tau = solve_rows(scores, live, QUADRATIC_STEPS, TOLERANCE, PTX)
    row = row_threshold(maximum, tau)
    tl.store(threshold + pair.to(tl.int64) * query_count + rows, row, mask=rows < query_count)

    value_start = head_start(v, pair, heads)
    result = tl.zeros((ROWS, SHAPE.width), tl.float32)
    mean = tl.zeros((ROWS, SHAPE.width), tl.float32)
    root_sum = tl.zeros((ROWS,), tl.float32)
    for i in tl.static_range(len(TILES)):
        keys = TILES[i][0] + tl.arange(0, TILES[i][1])
        value = load_rows((value_start, v.row, keys, key_count), SHAPE)
        u = roots(scores[i], tau[:, None], PTX)
        result = tl.dot((u * u).to(value.dtype), value, result, input_precision="ieee")
        if mean_value is not None:
            mean = tl.dot(u.to(value.dtype), value, mean, input_precision="ieee")
            root_sum += tl.sum(u, 1)
    invalid = (row != row)[:, None]
    result = tl.where(invalid, float("nan"), result)
    store_rows((head_start(out, pair, heads), out.row, rows, query_count), result, SHAPE)
    if mean_value is not None:
        mean = mean / tl.where(root_sum > 0.0, root_sum, 1.0)[:, None]
        mean = tl.where(invalid, float("nan"), mean)
        store_rows((head_start(mean_value, pair, heads), mean_value.row, rows, query_count), mean, SHAPE)
