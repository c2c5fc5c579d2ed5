"""1.5-entmax on the CPU, compiled by Numba: rows alone, and whole attention one head at a time on one core.

A head's tile of scores is made by BLAS, solved row by row and used while it lies in the second cache. Rows of trained
models have few weights: below `_SPARSE` of them only the keys of the support are visited, forward and backward,
which is exact because the others are 0. float32; threads take whole heads, so that sums have one order: deterministic.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

Array = NDArray[np.float32]

_MAX_STEPS = 64
_TILE_BYTES = 1 << 18  # half of a usual second cache
_FEWEST_ROWS = 16
_SPARSE = np.float32(0.2)  # share of weights above 0 at which products by BLAS take as long as visiting the support
_TOLERANCE = np.float32(1e-4)
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_NAN, _INF = np.float32(np.nan), np.float32(np.inf)
# Sums may be reordered, which is what lets them be vectorised. NaN and infinity keep their meaning.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def _compiled(function: Callable[..., Any], fastmath: set[str] = _FASTMATH) -> Any:
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile anew in every process
        return numba.njit(**options)(function)


def _maximum(row: Array) -> np.float32:
    largest = -_INF
    for key in range(row.shape[0]):
        largest = max(largest, row[key])
    return largest


# Only without regard to NaN can a maximum be vectorised: five times as fast. Whoever calls looks for NaN elsewhere.
_maximum_without_nan = _compiled(_maximum, _FASTMATH | {"nnan"})


@_compiled
def _solve_row(row: Array) -> tuple[np.float32, np.float32, int]:
    """Halved scores become p in place; returns m, tau (as of `rows.probabilities_`) and the size of the support."""
    keys = row.shape[0]
    unordered = _ZERO
    for key in range(keys):
        unordered += row[key] * _ZERO  # NaN where the row has NaN or an infinity
    if unordered != unordered:
        damaged = False
        for key in range(keys):
            damaged = damaged or not row[key] < _INF
        if damaged:
            row[:] = _NAN
            return _NAN, _NAN, keys
    largest = _maximum_without_nan(row)
    if largest == -_INF:
        row[:] = _ZERO
        return _ZERO, -_ONE, 0
    for key in range(keys):
        row[key] -= largest
    tau, low, high = -_ONE, -_ONE, _ZERO
    for _ in range(_MAX_STEPS):
        first = _ZERO
        second = _ZERO
        support = _ZERO
        for key in range(keys):
            lifted = max(row[key] - tau, _ZERO)
            first += lifted
            second += lifted * lifted
            support += _ONE if lifted > _ZERO else _ZERO
        excess = second - _ONE
        newton = tau + excess / (_TWO * first)
        if abs(excess) <= _TOLERANCE:
            tau = newton
            break
        root = np.sqrt(max(first * first - support * excess, _ZERO))
        quadratic = tau + excess / (first + root)
        if excess >= _ZERO:
            low = max(low, newton)
            tau = quadratic if quadratic < high else _HALF * (low + high)
        else:
            high = min(high, tau)
            low = max(low, quadratic)
            tau = low
    for key in range(keys):
        lifted = max(row[key] - tau, _ZERO)
        row[key] = lifted * lifted
    return largest, tau, int(support)


@_compiled
def _lift_row(row: Array, largest: np.float32, tau: np.float32) -> tuple[np.float32, np.float32]:
    """Halved scores become u = sqrt(p) in place; returns its sum and the number of positive ones."""
    total = _ZERO
    support = _ZERO
    for key in range(row.shape[0]):
        lifted = max((row[key] - largest) - tau, _ZERO)
        row[key] = lifted
        total += lifted
        support += _ONE if lifted > _ZERO else _ZERO
    return total, support


@_compiled
def _gradient_row(row: Array, grad: Array, total: np.float32) -> None:
    """u becomes p, and the gradient of p that of the scores, in place."""
    weighted = _ZERO
    for key in range(row.shape[0]):
        weighted += row[key] * grad[key]
    mean = weighted / total if total > _ZERO else _ZERO
    for key in range(row.shape[0]):
        lifted = row[key]
        grad[key] = lifted * (grad[key] - mean)
        row[key] = lifted * lifted


@_compiled
def _solve_rows(rows: Array, thresholds: Array, start: int, stop: int) -> None:
    for index in range(start, stop):
        largest, tau, _ = _solve_row(rows[index])
        thresholds[index, 0] = largest
        thresholds[index, 1] = tau


@_compiled
def _gradient_rows(rows: Array, grads: Array, thresholds: Array, start: int, stop: int) -> None:
    for index in range(start, stop):
        tau = thresholds[index, 1]
        if tau != tau:
            rows[index, :] = _NAN
            grads[index, :] = _NAN
        else:
            total, _ = _lift_row(rows[index], thresholds[index, 0], tau)
            _gradient_row(rows[index], grads[index], total)


@_compiled
def _support(row: Array, places: Any) -> int:
    """Writes the places of the positive entries of `row`, in order; returns how many there are."""
    count = np.uint64(0)
    for key in range(row.shape[0]):
        places[count] = key
        count += np.uint64(row[key] > _ZERO)
    return int(count)


@_compiled
def _halved_scores(
    q: Array, half: np.float32, k: Array, mask: Array, masked: bool, scaled: Array, scores: Array
) -> None:
    """half * q k^T + mask / 2 of one tile into `scores`, and half * q into `scaled`."""
    for row in range(q.shape[0]):
        for column in range(q.shape[1]):
            scaled[row, column] = q[row, column] * half
    np.dot(scaled, k.T, scores)
    if masked:
        for row in range(scores.shape[0]):
            for key in range(scores.shape[1]):
                scores[row, key] += mask[row, key] * _HALF


@_compiled
def _forward(
    q: Array,
    k: Array,
    v: Array,
    mask: Array,
    masked: bool,
    half: np.float32,
    tile: int,
    sparse: np.float32,
    items: Any,
    out: Array,
    thresholds: Array,
) -> None:
    """Attention of the work `items` [.,4] (picture, head, first query, end of queries)."""
    keys, width, depth = k.shape[2], k.shape[3], v.shape[3]
    key, value = np.empty((keys, width), np.float32), np.empty((keys, depth), np.float32)
    scores, scaled = np.empty((tile, keys), np.float32), np.empty((tile, width), np.float32)
    product = np.empty((tile, depth), np.float32)
    places = np.empty(keys + 1, np.int32)
    for item in range(items.shape[0]):
        picture, head = items[item, 0], items[item, 1]
        key[:] = k[picture, head]
        value[:] = v[picture, head]
        for top in range(items[item, 2], items[item, 3], tile):
            rows = min(tile, items[item, 3] - top)
            part = scores[:rows]
            _halved_scores(
                q[picture, head, top : top + rows],
                half,
                key,
                mask[picture, head, top : top + rows],
                masked,
                scaled[:rows],
                part,
            )
            positive = 0
            damaged = False
            for row in range(rows):
                largest, tau, support = _solve_row(part[row])
                thresholds[picture, head, top + row, 0] = largest
                thresholds[picture, head, top + row, 1] = tau
                positive += support
                damaged = damaged or thresholds[picture, head, top + row, 1] != thresholds[picture, head, top + row, 1]
            made = product[:rows]
            if positive < sparse * rows * keys and not damaged:  # NaN is not positive, and would be passed by
                made[:] = _ZERO
                for row in range(rows):
                    for place in range(_support(part[row], places)):
                        source = places[place]
                        weight = part[row, source]
                        for column in range(depth):
                            made[row, column] += weight * value[source, column]
            else:
                np.dot(part, value, made)
            out[picture, head, top : top + rows] = made


@_compiled
def _backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    mask: Array,
    masked: bool,
    half: np.float32,
    tile: int,
    sparse: np.float32,
    items: Any,
    thresholds: Array,
    dq: Array,
    dk: Array,
    dv: Array,
) -> None:
    """Gradients of the work `items` [.,5] (picture, head, first query, end, part): dk and dv are kept apart by part."""
    keys, width, depth = k.shape[2], k.shape[3], v.shape[3]
    key, value = np.empty((keys, width), np.float32), np.empty((keys, depth), np.float32)
    scores, dscores = np.empty((tile, keys), np.float32), np.empty((tile, keys), np.float32)
    scaled, output = np.empty((tile, width), np.float32), np.empty((tile, depth), np.float32)
    dquery = np.empty((tile, width), np.float32)
    dkey, dvalue = np.empty((keys, width), np.float32), np.empty((keys, depth), np.float32)
    key_part, value_part = np.empty((keys, width), np.float32), np.empty((keys, depth), np.float32)
    places = np.empty(keys + 1, np.int32)
    for item in range(items.shape[0]):
        picture, head, part = items[item, 0], items[item, 1], items[item, 4]
        key[:] = k[picture, head]
        value[:] = v[picture, head]
        dkey[:] = _ZERO
        dvalue[:] = _ZERO
        for top in range(items[item, 2], items[item, 3], tile):
            rows = min(tile, items[item, 3] - top)
            lifted, made, gradient, change = scores[:rows], dscores[:rows], output[:rows], dquery[:rows]
            _halved_scores(
                q[picture, head, top : top + rows],
                half,
                key,
                mask[picture, head, top : top + rows],
                masked,
                scaled[:rows],
                lifted,
            )
            gradient[:] = grad[picture, head, top : top + rows]
            positive = _ZERO
            damaged = False
            for row in range(rows):
                _, support = _lift_row(
                    lifted[row], thresholds[picture, head, top + row, 0], thresholds[picture, head, top + row, 1]
                )
                positive += support
                damaged = damaged or thresholds[picture, head, top + row, 1] != thresholds[picture, head, top + row, 1]
            if positive < sparse * rows * keys and not damaged:
                change[:] = _ZERO
                for row in range(rows):
                    count = _support(lifted[row], places)
                    total = _ZERO
                    weighted = _ZERO
                    for place in range(count):
                        source = places[place]
                        product = _ZERO
                        for column in range(depth):
                            product += gradient[row, column] * value[source, column]
                        made[row, place] = product
                        total += lifted[row, source]
                        weighted += lifted[row, source] * product
                    mean = weighted / total if total > _ZERO else _ZERO
                    for place in range(count):
                        source = places[place]
                        root = lifted[row, source]
                        slope = root * (made[row, place] - mean)
                        twice = _TWO * slope
                        weight = root * root
                        for column in range(depth):
                            dvalue[source, column] += weight * gradient[row, column]
                        for column in range(width):
                            dkey[source, column] += twice * scaled[row, column]
                            change[row, column] += slope * key[source, column]
            else:
                np.dot(gradient, value.T, made)
                for row in range(rows):
                    if thresholds[picture, head, top + row, 1] != thresholds[picture, head, top + row, 1]:
                        lifted[row, :] = _NAN
                        made[row, :] = _NAN
                    else:
                        total = _ZERO
                        for place in range(keys):
                            total += lifted[row, place]
                        _gradient_row(lifted[row], made[row], total)
                np.dot(lifted.T, gradient, value_part)
                np.dot(made.T, scaled[:rows], key_part)
                for source in range(keys):
                    for column in range(depth):
                        dvalue[source, column] += value_part[source, column]
                    for column in range(width):
                        dkey[source, column] += _TWO * key_part[source, column]
                np.dot(made, key, change)
            for row in range(rows):
                for column in range(width):
                    dq[picture, head, top + row, column] = change[row, column] * (_TWO * half)
        dk[part, picture, head] = dkey
        dv[part, picture, head] = dvalue


def probabilities_(halved: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `rows.probabilities_`, for a contiguous float32 tensor on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.empty(table.shape[0], 2)
    arrays = (table.numpy(), thresholds.numpy())
    _over_threads(lambda start, stop: _solve_rows(*arrays, start, stop), table.shape[0])
    pair = thresholds.view(*halved.shape[:-1], 2)
    return pair[..., :1], pair[..., 1:]


def gradients_(halved: Tensor, grad: Tensor, largest: Tensor, tau: Tensor, scratch: Tensor | None = None) -> None:
    """As `rows.gradients_`, for contiguous float32 tensors on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.cat([largest, tau], -1).view(-1, 2)
    arrays = (table.numpy(), grad.view(table.shape).numpy(), thresholds.numpy())
    _over_threads(lambda start, stop: _gradient_rows(*arrays, start, stop), table.shape[0])


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """As `blocks.forward`, for float32 on the CPU; the thresholds are [B,H,M,2], and the output lies in memory as [B,M,H,E]."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    out = q.new_zeros(batch, queries, heads, v.shape[3]).transpose(1, 2)
    thresholds = q.new_empty(batch, heads, queries, 2)
    if out.numel() and keys:
        tile, items = _tile(queries, keys), _items(batch, heads, queries, torch.get_num_threads())
        given = (
            *(x.detach().numpy() for x in (q, k, v)),
            *_mask(mask, q, keys),
            np.float32(0.5 * scale),
            tile,
            _SPARSE,
        )
        made = (out.numpy(), thresholds.numpy())
        with _blas().limit(limits=1):
            _over_threads(lambda start, stop: _forward(*given, items[start:stop], *made), len(items))
    return out, thresholds


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, thresholds: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, for float32 on the CPU; all three lie in memory as [B,N,H,D]."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    items = _items(batch, heads, queries, torch.get_num_threads())
    parts = 1 + int(items[:, 4].max(initial=0))
    dq = q.new_zeros(batch, queries, heads, q.shape[3]).transpose(1, 2)
    dk, dv = (x.new_zeros(parts, batch, keys, heads, x.shape[3]).transpose(2, 3) for x in (k, v))
    if grad.numel() and keys:
        tile = _tile(queries, keys)
        given = (
            *(x.detach().numpy() for x in (grad, q, k, v)),
            *_mask(mask, q, keys),
            np.float32(0.5 * scale),
            tile,
            _SPARSE,
        )
        made = (thresholds.numpy(), dq.numpy(), dk.numpy(), dv.numpy())
        with _blas().limit(limits=1):
            _over_threads(lambda start, stop: _backward(*given, items[start:stop], *made), len(items))
    return dq, *_joined(dk, dv)


def _joined(dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over the parts of a head, in their order."""
    return (dk[0], dv[0]) if dk.shape[0] == 1 else (dk.sum(0), dv.sum(0))


def _tile(queries: int, keys: int) -> int:
    """Query rows of a tile."""
    return min(queries, max(_FEWEST_ROWS, _TILE_BYTES // (4 * keys)))


def _items(batch: int, heads: int, queries: int, threads: int) -> NDArray[np.int64]:
    """Work [.,5]: picture, head, first query, end, part. A head is one item where there are as many heads as threads."""
    parts = min(max(1, -(-threads // max(1, batch * heads))), max(1, queries))
    bounds = np.linspace(0, queries, parts + 1).astype(int).tolist()
    work = [
        (picture, head, bounds[part], bounds[part + 1], part)
        for picture in range(batch)
        for head in range(heads)
        for part in range(parts)
    ]
    return np.array(work, np.int64).reshape(-1, 5)


def _mask(mask: Tensor | None, q: Tensor, keys: int) -> tuple[Array, bool]:
    """The mask as [B,H,M,N] without copying it; zeros of no size in memory where there is none."""
    shape = (*q.shape[:3], keys)
    if mask is None:
        return q.new_zeros(1).expand(shape).numpy(), False
    return mask.detach().expand(shape).numpy(), True


@cache
def _blas() -> Any:
    """The BLAS that NumPy's products in compiled code go to: one thread each, since the heads have theirs."""
    return ThreadpoolController().select(internal_api="openblas")


def _over_threads(function: Callable[[int, int], None], count: int) -> None:
    threads = max(1, min(torch.get_num_threads(), count))
    if threads == 1:
        function(0, count)
        return
    bounds = np.linspace(0, count, threads + 1).astype(int).tolist()
    list(_pool(threads).map(lambda part: function(bounds[part], bounds[part + 1]), range(threads)))


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="entmax")
    return _pools[threads]
