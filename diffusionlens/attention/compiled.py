"""1.5-entmax on the CPU, compiled by Numba: rows alone, and whole attention one head at a time on one core.

A head's tile of scores is made by BLAS, solved row by row and used while it lies in the second cache. Rows of trained
models have few weights: below `_SPARSE` of them only the keys of the support are visited, forward and backward,
which is exact because the others are 0. float32; threads take whole heads, so that sums have one order: deterministic.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from diffusionlens.attention.compiled_kernels import (
    Array,
    attention_backward,
    attention_forward,
    gradient_rows,
    solve_rows,
)

_TILE_BYTES = 1 << 18  # half of a usual second cache
_FEWEST_ROWS = 16
_SPARSE = np.float32(0.2)  # share of weights above 0 at which products by BLAS take as long as visiting the support


def probabilities_(halved: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As `rows.probabilities_`, for a contiguous float32 tensor on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.empty(table.shape[0], 2)
    arrays = (table.numpy(), thresholds.numpy())
    _over_threads(lambda start, stop: solve_rows(*arrays, start, stop), table.shape[0])
    pair = thresholds.view(*halved.shape[:-1], 2)
    return pair[..., :1], pair[..., 1:]


def gradients_(halved: Tensor, grad: Tensor, largest: Tensor, tau: Tensor, scratch: Tensor | None = None) -> None:
    """As `rows.gradients_`, for contiguous float32 tensors on the CPU."""
    table = halved.view(-1, halved.shape[-1])
    thresholds = torch.cat([largest, tau], -1).view(-1, 2)
    arrays = (table.numpy(), grad.view(table.shape).numpy(), thresholds.numpy())
    _over_threads(lambda start, stop: gradient_rows(*arrays, start, stop), table.shape[0])


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
            _over_threads(lambda start, stop: attention_forward(*given, items[start:stop], *made), len(items))
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
            _over_threads(lambda start, stop: attention_backward(*given, items[start:stop], *made), len(items))
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
