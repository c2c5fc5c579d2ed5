"""Backward in two kernels without atomics, so that two runs agree bit by bit: dQ by blocks of queries, dK and dV by blocks of keys.

With u = relu(score / 2 - threshold) and the forward's mean value (u V) / sum u, delta = dO . mean value is the mean of
dP = dO V^T under u, and dS = u (dP - delta): nothing of size N x N is kept, nothing is reduced over a row a second time.
"""

import triton
import triton.language as tl

from diffusionlens.attention.triton.heads import head_start, load_half_mask, load_rows, store_rows
from diffusionlens.attention.triton.solve import is_finite, scaled_roots


@triton.jit
def query_gradient_tile(
    query, grad, k, v, key_start, value_start, mask, half_scale, pair, heads, rows, query_count, first, key_count,
    row, delta, grad_query, root_sum,
    SIZE: tl.constexpr, EDGE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Adds dS K and the sum of u of the keys from `first` on; only an EDGE tile can reach behind the last key."""
    keys = first + tl.arange(0, SIZE)
    key = load_rows(key_start, k.row, keys, key_count, HEAD_DIM, WIDTH)
    value = load_rows(value_start, v.row, keys, key_count, HEAD_DIM, WIDTH)
    products = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    offset = -row[:, None]
    if mask is not None:
        offset += load_half_mask(mask, pair, heads, rows[:, None], query_count, keys[None, :], key_count)
    u = scaled_roots(products, half_scale, offset, PTX)
    if EDGE:
        u = tl.where(keys[None, :] < key_count, u, 0.0)
    root_sum += tl.sum(u, 1)
    grad_weight = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
    grad_score = u * (grad_weight - delta[:, None])
    return tl.dot(grad_score.to(key.dtype), key, grad_query, input_precision=PRECISION), root_sum


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
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    TAIL: tl.constexpr,
    PRECISION: tl.constexpr,
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
    query = load_rows(head_start(q, pair, heads), q.row, rows, query_count, HEAD_DIM, WIDTH)
    grad = load_rows(head_start(grad_out, pair, heads), grad_out.row, rows, query_count, HEAD_DIM, WIDTH)
    mean = load_rows(head_start(mean_value, pair, heads), mean_value.row, rows, query_count, HEAD_DIM, WIDTH)
    place = pair.to(tl.int64) * query_count + rows
    row = tl.load(threshold + place, mask=inside, other=float("inf"))
    delta = tl.sum(grad.to(tl.float32) * mean, 1)
    delta = tl.where(row != row, row, delta)  # an invalid row: its NaN must reach every gradient
    key_start = head_start(k, pair, heads)
    value_start = head_start(v, pair, heads)
    whole = key_count // KEYS * KEYS

    grad_query = tl.zeros((ROWS, WIDTH), tl.float32)
    root_sum = tl.zeros((ROWS,), tl.float32)
    for first in range(0, whole, KEYS):
        grad_query, root_sum = query_gradient_tile(
            query, grad, k, v, key_start, value_start, mask, half_scale, pair, heads, rows, query_count, first, key_count,
            row, delta, grad_query, root_sum,
            KEYS, False, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    if TAIL > 0:
        grad_query, root_sum = query_gradient_tile(
            query, grad, k, v, key_start, value_start, mask, half_scale, pair, heads, rows, query_count, whole, key_count,
            row, delta, grad_query, root_sum,
            TAIL, True, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    # 2^-21: some units in the last place of score and threshold, by which the sum may be off in a row of one key.
    single = root_sum <= 1.0 + 4.7683716e-07 * tl.maximum(tl.abs(row), 1.0)
    single = single & (row == row)
    tl.store(delta_out + place, tl.where(single, 0.0, delta), mask=inside)
    tl.store(spread_out + place, tl.where(single, 0.0, 1.0), mask=inside)
    grad_query = tl.where(single[:, None], 0.0, grad_query * (2.0 * half_scale))
    store_rows(head_start(grad_q, pair, heads), grad_q.row, rows, query_count, grad_query, HEAD_DIM, WIDTH)


@triton.jit
def key_gradient_tile(
    key, value, q, grad_out, query_start, grad_start, mask, threshold, delta_in, spread_in, half_scale,
    pair, heads, keys, key_count, first, query_count, grad_key, grad_value,
    SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Adds dS^T Q and P^T dO of the queries from `first` on; behind the last query u is 0 by its threshold."""
    rows = first + tl.arange(0, SIZE)
    inside = rows < query_count
    query = load_rows(query_start, q.row, rows, query_count, HEAD_DIM, WIDTH)
    grad = load_rows(grad_start, grad_out.row, rows, query_count, HEAD_DIM, WIDTH)
    place = pair.to(tl.int64) * query_count + rows
    row = tl.load(threshold + place, mask=inside, other=float("inf"))
    delta = tl.load(delta_in + place, mask=inside, other=0.0)
    spread = tl.load(spread_in + place, mask=inside, other=0.0)
    products = tl.dot(key, tl.trans(query), input_precision=PRECISION)
    offset = -row[None, :]
    if mask is not None:
        offset += load_half_mask(mask, pair, heads, rows[None, :], query_count, keys[:, None], key_count)
    u = scaled_roots(products, half_scale, offset, PTX)
    grad_value = tl.dot((u * u).to(grad.dtype), grad, grad_value, input_precision=PRECISION)
    grad_weight = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
    grad_score = u * tl.fma(grad_weight, spread[None, :], -delta[None, :])
    grad_key = tl.dot(grad_score.to(query.dtype), query, grad_key, input_precision=PRECISION)
    return grad_key, grad_value


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
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TAIL: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: dK and dV of KEYS keys of one head, over tiles of ROWS queries and one of TAIL queries for the rest."""
    blocks = tl.cdiv(key_count, KEYS)
    pair = tl.program_id(0) // blocks
    keys = (tl.program_id(0) % blocks) * KEYS + tl.arange(0, KEYS)
    key = load_rows(head_start(k, pair, heads), k.row, keys, key_count, HEAD_DIM, WIDTH)
    value = load_rows(head_start(v, pair, heads), v.row, keys, key_count, HEAD_DIM, WIDTH)
    query_start = head_start(q, pair, heads)
    grad_start = head_start(grad_out, pair, heads)
    whole = query_count // ROWS * ROWS

    grad_key = tl.zeros((KEYS, WIDTH), tl.float32)
    grad_value = tl.zeros((KEYS, WIDTH), tl.float32)
    for first in range(0, whole, ROWS):
        grad_key, grad_value = key_gradient_tile(
            key, value, q, grad_out, query_start, grad_start, mask, threshold, delta_in, spread_in, half_scale,
            pair, heads, keys, key_count, first, query_count, grad_key, grad_value,
            ROWS, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    if TAIL > 0:
        grad_key, grad_value = key_gradient_tile(
            key, value, q, grad_out, query_start, grad_start, mask, threshold, delta_in, spread_in, half_scale,
            pair, heads, keys, key_count, whole, query_count, grad_key, grad_value,
            TAIL, HEAD_DIM, WIDTH, PRECISION, PTX,
        )  # fmt: skip
    # An invalid row makes all of dK NaN (through delta); its weights would be NaN too, and u is 0 there.
    grad_value = tl.where(grad_key != grad_key, grad_key, grad_value)
    grad_key = grad_key * (2.0 * half_scale)
    store_rows(head_start(grad_k, pair, heads), grad_k.row, keys, key_count, grad_key, HEAD_DIM, WIDTH)
    store_rows(head_start(grad_v, pair, heads), grad_v.row, keys, key_count, grad_value, HEAD_DIM, WIDTH)
