"""What `rows` does, compiled for the CPU by Numba: float32, a row at a time, so that a row's passes stay in the first cache.

Plain PyTorch makes every pass over a block that fits the second cache at best; here a pass costs some tens of nanoseconds.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]

_MAX_STEPS = 64
_TOLERANCE = np.float32(1e-4)
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_MINUS_INF = np.float32(-np.inf)
# Sums may be reordered, which is what lets them be vectorised. NaN and infinity keep their meaning.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def _compiled(function: Callable[..., None]) -> Any:
    options: dict[str, Any] = {"nogil": True, "fastmath": _FASTMATH, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile anew in every process
        return numba.njit(**options)(function)


def _solve_rows(rows: Array, thresholds: Array, start: int, stop: int) -> None:
    """Rows [start, stop) of `rows` [R,n], halved scores, become p; `thresholds` [R,2] gets m and tau."""
    keys = rows.shape[1]
    for index in range(start, stop):
        row = rows[index]
        largest = _MINUS_INF
        unordered = _ZERO
        for key in range(keys):
            largest = max(largest, row[key])
            unordered += row[key] * _ZERO  # NaN where the row has NaN or an infinity; max may pass over NaN
        if largest == _MINUS_INF and unordered != unordered:
            missing = True
            for key in range(keys):
                missing = missing and row[key] == _MINUS_INF
            if missing:
                row[:] = _ZERO
                thresholds[index, 0] = _ZERO
                thresholds[index, 1] = -_ONE
                continue
        damaged = False
        if unordered != unordered:
            for key in range(keys):
                damaged = damaged or not row[key] < np.float32(np.inf)
        if damaged:
            row[:] = np.float32(np.nan)
            thresholds[index, 0] = largest
            thresholds[index, 1] = np.float32(np.nan)
            continue
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
        thresholds[index, 0] = largest
        thresholds[index, 1] = tau


def _gradient_rows(rows: Array, grads: Array, thresholds: Array, start: int, stop: int) -> None:
    """Rows of halved scores become p, and the gradients of p those of the scores, in place."""
    keys = rows.shape[1]
    for index in range(start, stop):
        row = rows[index]
        grad = grads[index]
        largest = thresholds[index, 0]
        tau = thresholds[index, 1]
        if tau != tau:
            row[:] = np.float32(np.nan)
            grad[:] = np.float32(np.nan)
            continue
        total = _ZERO
        weighted = _ZERO
        for key in range(keys):
            lifted = max((row[key] - largest) - tau, _ZERO)
            row[key] = lifted
            total += lifted
            weighted += lifted * grad[key]
        mean = weighted / total if total > _ZERO else _ZERO
        for key in range(keys):
            lifted = row[key]
            grad[key] = lifted * (grad[key] - mean)
            row[key] = lifted * lifted


_solve_rows_compiled = _compiled(_solve_rows)
_gradient_rows_compiled = _compiled(_gradient_rows)


def probabilities_(halved: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `rows.probabilities_`, for a contiguous float32 tensor on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.empty(table.shape[0], 2)
    _over_threads(_solve_rows_compiled, table.shape[0], table.numpy(), thresholds.numpy())
    pair = thresholds.view(*halved.shape[:-1], 2)
    return pair[..., :1], pair[..., 1:]


def gradients_(halved: Tensor, grad: Tensor, largest: Tensor, tau: Tensor, scratch: Tensor | None = None) -> None:
    """As `rows.gradients_`, for contiguous float32 tensors on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.cat([largest, tau], -1).view(-1, 2)
    arrays = (table.numpy(), grad.view(table.shape).numpy(), thresholds.numpy())
    _over_threads(_gradient_rows_compiled, table.shape[0], *arrays)


def _over_threads(function: Any, count: int, *arrays: Array) -> None:
    threads = max(1, min(torch.get_num_threads(), count))
    if threads == 1:
        function(*arrays, 0, count)
        return
    bounds = np.linspace(0, count, threads + 1).astype(int).tolist()
    list(_pool(threads).map(lambda part: function(*arrays, bounds[part], bounds[part + 1]), range(threads)))


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="entmax-rows")
    return _pools[threads]
