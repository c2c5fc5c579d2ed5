"""Backward in two kernels without atomics, so that runs agree bit by bit: dQ by blocks of queries, dK and dV by blocks of keys.

With u = relu(score / 2 - threshold) and the forward's mean value (u V) / sum u, delta = dO . mean value is the mean of
dP = dO V^T under u, and dS = u (dP - delta): nothing of size N x N is kept, nothing is reduced over a row a second time.

Both go over whole tiles and a narrower one of TAIL for the rest; or, CHECKED, over one kind of tile that looks where it ends.
"""

import triton
import triton.language as tl

from diffusionlens.attention.triton.heads import head_start, load_half_mask, load_rows, row_products, store_rows
from diffusionlens.attention.triton.solve import scaled_roots


@triton.jit
def add_query_gradient(
    row_block, key_side, first, row, delta, grad_query, root_sum,
    SIZE: tl.constexpr, EDGE: tl.constexpr, SHAPE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """dS K and the sum of u with those of the keys from `first` on; only an EDGE tile can reach behind the last key."""
    query, queries, grad, grads = row_block
    key_start, key_stride, value_start, value_stride, key_count, mask, half_scale, pair, heads = key_side
    keys = first + tl.arange(0, SIZE)
    key_block = (key_start, key_stride, keys, key_count)
    products = row_products(query, queries, key_block, (query.shape[0], SIZE), SHAPE)
    offset = -row[:, None]
    if mask is not None:
        offset += load_half_mask(mask, pair, heads, queries[2][:, None], queries[3], keys[None, :], key_count)
    u = scaled_roots(products, half_scale, offset, PTX)
    if EDGE:
        u = tl.where(keys[None, :] < key_count, u, 0.0)
    root_sum += tl.sum(u, 1)
    value_block = (value_start, value_stride, keys, key_count)
    grad_score = u * (row_products(grad, grads, value_block, (query.shape[0], SIZE), SHAPE) - delta[:, None])
    key = load_rows(key_block, SHAPE)
    return tl.dot(grad_score.to(key.dtype), key, grad_query, input_precision="ieee"), root_sum


@triton.jit
def backward_queries(
    grad_out,
    q,
    k,
    v,
    mask,
    threshold,
    mean_value,
    grad_q,
    delta_out,
    spread_out,
    half_scale,
    heads,
    query_count,
    key_count,
    SHAPE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    TAIL: tl.constexpr,
    CHECKED: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: dQ of ROWS queries of one head, and what the other kernel needs of a row: delta and spread.

    Spread is 1, or 0 for a row of one key (or none), whose weights do not move: there delta equals dP only up to rounding, and
    dS must be exactly 0. The sum of u tells: it is 1 there and larger where two keys share the weight.
    """
    blocks = tl.cdiv(query_count, ROWS)
    pair = tl.program_id(0) // blocks
    rows = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    inside = rows < query_count
    queries = (head_start(q, pair, heads), q.row, rows, query_count)
    query = load_rows(queries, SHAPE)
    grads = (head_start(grad_out, pair, heads), grad_out.row, rows, query_count)
    grad = load_rows(grads, SHAPE)
    mean = load_rows((head_start(mean_value, pair, heads), mean_value.row, rows, query_count), SHAPE)
    place = pair.to(tl.int64) * query_count + rows
    row = tl.load(threshold + place, mask=inside, other=float("inf"))
    delta = tl.sum(grad.to(tl.float32) * mean, 1)
    delta = tl.where(row != row, row, delta)  # an invalid row: its NaN must reach every gradient
    row_block = (query, queries, grad, grads)
    key_start, value_start = head_start(k, pair, heads), head_start(v, pair, heads)
    key_side = (key_start, k.row, value_start, v.row, key_count, mask, half_scale, pair, heads)
    whole = key_count if CHECKED else key_count // KEYS * KEYS

    grad_query = tl.zeros((ROWS, SHAPE.width), tl.float32)
    root_sum = tl.zeros((ROWS,), tl.float32)
    for first in range(0, whole, KEYS):
        grad_query, root_sum = add_query_gradient(
            row_block, key_side, first, row, delta, grad_query, root_sum, KEYS, CHECKED, SHAPE, PTX
        )
    if TAIL > 0:
        grad_query, root_sum = add_query_gradient(
            row_block, key_side, whole, row, delta, grad_query, root_sum, TAIL, True, SHAPE, PTX
        )
    # 2^-21: some units in the last place of score and threshold, by which the sum may be off in a row of one key.
    single = root_sum <= 1.0 + 4.7683716e-07 * tl.maximum(tl.abs(row), 1.0)
    single = single & (row == row)
    tl.store(delta_out + place, tl.where(single, 0.0, delta), mask=inside)
    tl.store(spread_out + place, tl.where(single, 0.0, 1.0), mask=inside)
    grad_query = tl.where(single[:, None], 0.0, grad_query * (2.0 * half_scale))
    store_rows((head_start(grad_q, pair, heads), grad_q.row, rows, query_count), grad_query, SHAPE)


@triton.jit
def add_key_gradients(
    key_block, query_side, first, grad_key, grad_value, SIZE: tl.constexpr, SHAPE: tl.constexpr, PTX: tl.constexpr
):
    """dS^T Q and P^T dO with those of the queries from `first` on; behind the last query u is 0 by its threshold."""
    key, keys, value, values = key_block
    query_start, query_stride, grad_start, grad_stride, query_count, sums, mask, half_scale, pair, heads = query_side
    threshold, delta_in, spread_in = sums
    rows = first + tl.arange(0, SIZE)
    inside = rows < query_count
    queries = (query_start, query_stride, rows, query_count)
    grads = (grad_start, grad_stride, rows, query_count)
    place = pair.to(tl.int64) * query_count + rows
    row = tl.load(threshold + place, mask=inside, other=float("inf"))
    delta = tl.load(delta_in + place, mask=inside, other=0.0)
    spread = tl.load(spread_in + place, mask=inside, other=0.0)
    products = row_products(key, keys, queries, (key.shape[0], SIZE), SHAPE)
    offset = -row[None, :]
    if mask is not None:
        offset += load_half_mask(mask, pair, heads, rows[None, :], query_count, keys[2][:, None], keys[3])
    u = scaled_roots(products, half_scale, offset, PTX)
    grad = load_rows(grads, SHAPE)
    grad_value = tl.dot((u * u).to(grad.dtype), grad, grad_value, input_precision="ieee")
    grad_weight = row_products(value, values, grads, (key.shape[0], SIZE), SHAPE)
    grad_score = u * tl.fma(grad_weight, spread[None, :], -delta[None, :])
    query = load_rows(queries, SHAPE)
    return tl.dot(grad_score.to(query.dtype), query, grad_key, input_precision="ieee"), grad_value


@triton.jit
def backward_keys(
    grad_out,
    q,
    k,
    v,
    mask,
    threshold,
    delta_in,
    spread_in,
    grad_k,
    grad_v,
    half_scale,
    heads,
    query_count,
    key_count,
    SHAPE: tl.constexpr,
    ROWS: tl.constexpr,
    TAIL: tl.constexpr,
    CHECKED: tl.constexpr,
    KEYS: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: dK and dV of KEYS keys of one head, over tiles of ROWS queries and one of TAIL queries for the rest."""
    blocks = tl.cdiv(key_count, KEYS)
    pair = tl.program_id(0) // blocks
    places = (tl.program_id(0) % blocks) * KEYS + tl.arange(0, KEYS)
    keys = (head_start(k, pair, heads), k.row, places, key_count)
    values = (head_start(v, pair, heads), v.row, places, key_count)
    key_block = (load_rows(keys, SHAPE), keys, load_rows(values, SHAPE), values)
    query_start, grad_start = head_start(q, pair, heads), head_start(grad_out, pair, heads)
    sums = (threshold, delta_in, spread_in)
    query_side = (query_start, q.row, grad_start, grad_out.row, query_count, sums, mask, half_scale, pair, heads)
    whole = query_count if CHECKED else query_count // ROWS * ROWS

    grad_key = tl.zeros((KEYS, SHAPE.width), tl.float32)
    grad_value = tl.zeros((KEYS, SHAPE.width), tl.float32)
    for first in range(0, whole, ROWS):
        grad_key, grad_value = add_key_gradients(key_block, query_side, first, grad_key, grad_value, ROWS, SHAPE, PTX)
    if TAIL > 0:
        grad_key, grad_value = add_key_gradients(key_block, query_side, whole, grad_key, grad_value, TAIL, SHAPE, PTX)
    # An invalid row makes all of dK NaN (through delta); its weights would be NaN too, and u is 0 there.
    grad_value = tl.where(grad_key != grad_key, grad_key, grad_value)
    grad_key = grad_key * (2.0 * half_scale)
    store_rows((head_start(grad_k, pair, heads), grad_k.row, places, key_count), grad_key, SHAPE)
    store_rows((head_start(grad_v, pair, heads), grad_v.row, places, key_count), grad_value, SHAPE)
