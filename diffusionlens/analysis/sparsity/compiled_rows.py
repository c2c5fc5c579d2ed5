"""The row sums of an attention map in one trip through memory, compiled for the CPU by Numba.

The same numbers in plain PyTorch (`row_sums.by_torch`) take some fifteen trips, and three to four times as long. The ten
largest weights of a row are found without sorting it: the tenth largest of sixteen interleaved groups' maxima bounds
them from below, and what reaches the bound, some fifteen weights, is sorted in.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float32]

TOP = 10
SCALE = 2.0**60
"""Of the weights whose squares are summed: the square of a weight of 1e-20 is below float32's range, and that of 1 is far from
its other end."""
MASS, SQUARES, ENERGY, SUPPORT, OBJECTS, DISTANCE, LARGEST_WEIGHT, LARGEST_LOGIT, LOGIT_STD = range(9)
FIELDS = 9

_GROUPS = 16
_ZERO, _ONE, _SCALE = np.float32(0), np.float32(1), np.float32(SCALE)
# Sums may be reordered, which is what lets them be vectorised; NaN does not occur (the caller checks the outcome).
_FASTMATH = {"reassoc", "contract", "arcp", "nsz", "nnan"}


def _compiled(function: Callable[..., None]) -> Any:
    options: dict[str, Any] = {"nogil": True, "fastmath": _FASTMATH, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile anew in every process
        return numba.njit(**options)(function)


def _insert(best: Array, weight: np.float32) -> None:
    """Puts `weight` into the ascending `best` in place of the smallest, if it is larger than that."""
    if weight > best[0]:
        place = 0
        while place < TOP - 1 and best[place + 1] < weight:
            best[place] = best[place + 1]
            place += 1
        best[place] = weight


_insert_compiled = numba.njit(nogil=True, fastmath=_FASTMATH, inline="always")(_insert)


def _sums_of_rows(
    weights: Array,
    energies: Array,
    logits: Array,
    distance: Array,
    objects: Array,
    heads: int,
    prefix: int,
    start: int,
    stop: int,
    sums: Array,
    best: Array,
) -> None:
    keys = weights.shape[2]
    patches = keys - prefix
    maxima = np.empty(_GROUPS, np.float32)
    candidates = np.empty(keys + 1, np.float32)
    for group in range(start, stop):
        picture = group // heads
        for query in range(keys):
            mass = _ZERO
            squares = _ZERO
            energy = _ZERO
            support = _ZERO
            on_objects = _ZERO
            total_logit = _ZERO
            largest = _ZERO
            largest_logit = np.float32(-np.inf)
            for key in range(patches):
                weight = weights[group, query, prefix + key]
                logit = logits[group, query, prefix + key]
                mass += weight
                scaled = weight * _SCALE
                squares += scaled * scaled
                energy += weight * energies[group, query, prefix + key]
                support += _ONE if weight > _ZERO else _ZERO
                on_objects += weight * objects[picture, key]
                total_logit += logit
                largest = max(largest, weight)
                largest_logit = max(largest_logit, logit)
            for key in range(prefix):
                total_logit += logits[group, query, key]
                largest = max(largest, weights[group, query, key])
                largest_logit = max(largest_logit, logits[group, query, key])
            mean_logit = total_logit / np.float32(keys)
            deviation = _ZERO
            for key in range(keys):
                centred = logits[group, query, key] - mean_logit
                deviation += centred * centred
            far = _ZERO
            if query >= prefix:
                for key in range(patches):
                    far += weights[group, query, prefix + key] * distance[query - prefix, key]
            sums[group, query, MASS] = mass
            sums[group, query, SQUARES] = squares
            sums[group, query, ENERGY] = energy
            sums[group, query, SUPPORT] = support
            sums[group, query, OBJECTS] = on_objects
            sums[group, query, DISTANCE] = far
            sums[group, query, LARGEST_WEIGHT] = largest
            sums[group, query, LARGEST_LOGIT] = largest_logit
            sums[group, query, LOGIT_STD] = np.sqrt(deviation / np.float32(keys))

            top = best[group, query]
            top[:] = _ZERO
            for lane in range(_GROUPS):
                maxima[lane] = _ZERO
            for chunk in range(patches // _GROUPS):
                for lane in range(_GROUPS):
                    maxima[lane] = max(maxima[lane], weights[group, query, prefix + chunk * _GROUPS + lane])
            for lane in range(_GROUPS):
                _insert_compiled(top, maxima[lane])
            bound = top[0]
            count = np.uint64(0)
            for key in range(patches):
                weight = weights[group, query, prefix + key]
                candidates[count] = weight
                count += np.uint64(weight >= bound)
            top[:] = _ZERO
            for place in range(count):
                _insert_compiled(top, candidates[place])


_sums_of_rows_compiled = _compiled(_sums_of_rows)


def sums_of_rows(
    weights: Array, energies: Array, logits: Array, distance: Array, objects: Array, heads: int, prefix: int
) -> tuple[Array, Array]:
    """Sums over the patch keys of every row, and the ten largest weights there.

    Args:
        weights, energies, logits: [pictures*heads,N,N], C-contiguous; `energies` is what the weighted sum ENERGY is of.
        distance: [P,P] between patches. objects: [pictures,P], 1 where a patch is an object's.
        heads: heads per picture. prefix: tokens before the first patch; P = N - prefix.

    Returns:
        [pictures*heads,N,FIELDS], of which SQUARES is of weights times SCALE, LARGEST_WEIGHT, LARGEST_LOGIT and LOGIT_STD are
        over all keys and DISTANCE is 0 for prefix queries; and [pictures*heads,N,10] ascending, filled up with zeros when P < 10.
    """
    groups, tokens, _ = weights.shape
    sums = np.empty((groups, tokens, FIELDS), np.float32)
    best = np.empty((groups, tokens, TOP), np.float32)
    threads = max(1, min(torch.get_num_threads(), groups))
    bounds = np.linspace(0, groups, threads + 1).astype(int)

    def part(thread: int) -> None:
        start, stop = int(bounds[thread]), int(bounds[thread + 1])
        _sums_of_rows_compiled(weights, energies, logits, distance, objects, heads, prefix, start, stop, sums, best)

    if threads == 1:
        part(0)
    else:
        list(_pool(threads).map(part, range(threads)))
    return sums, best


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="row-sums")
    return _pools[threads]
