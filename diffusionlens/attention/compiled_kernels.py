"""1.5-entmax in Numba's language: rows, and whole attention tile by tile, forward and backward, of float32 arrays.

`compiled` shares them out over threads; a share has its own working memory.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_MAX_STEPS = 64
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
def solve_rows(rows: Array, thresholds: Array, start: int, stop: int) -> None:
    for index in range(start, stop):
        largest, tau, _ = _solve_row(rows[index])
        thresholds[index, 0] = largest
        thresholds[index, 1] = tau


@_compiled
def gradient_rows(rows: Array, grads: Array, thresholds: Array, start: int, stop: int) -> None:
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
def attention_forward(
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
def attention_backward(
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
