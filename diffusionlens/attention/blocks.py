"""Attention in blocks of (heads x queries) whose scores fit a cache: no N x N tensor, any number of tokens, any head width.

The forward pass keeps two numbers a row, the backward pass computes the scores again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diffusionlens.attention import rows

_BLOCK_BYTES = 1 << 21  # one block of scores; three of them are in use at a time
_FEWEST_ROWS = 16  # a product of fewer query rows than that is slow


@dataclass(frozen=True)
class _Block:
    """Heads [first, last) of the B*H and queries [top, bottom) of each."""

    first: int
    last: int
    top: int
    bottom: int

    @property
    def heads(self) -> slice:
        return slice(self.first, self.last)

    @property
    def queries(self) -> slice:
        return slice(self.top, self.bottom)

    def shape(self, keys: int) -> tuple[int, int, int]:
        return self.last - self.first, self.bottom - self.top, keys


def _blocks(heads: int, queries: int, keys: int, element: int) -> Iterator[_Block]:
    budget = max(1, _BLOCK_BYTES // (keys * element))  # rows a block
    rows = min(queries, max(_FEWEST_ROWS, budget))
    together = max(1, budget // rows) if rows == queries else 1
    for first in range(0, heads, together):
        for top in range(0, queries, rows):
            yield _Block(first, min(first + together, heads), top, min(top + rows, queries))


class _Buffers:
    """Three score blocks' memory, made once: fresh memory for every block would cost more than the products."""

    def __init__(self, like: Tensor, heads: int, queries: int, keys: int) -> None:
        largest = max(
            (b.last - b.first) * (b.bottom - b.top) for b in _blocks(heads, queries, keys, like.element_size())
        )
        self._memory = like.new_empty(4, largest * keys)

    def take(self, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Two contiguous tensors of `shape`, and a stack of two of them as scratch."""
        size = shape[0] * shape[1] * shape[2]
        first, second = (self._memory[place, :size].view(shape) for place in (0, 1))
        return first, second, self._memory[2:, :size].view(2, *shape)


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """1.5-entmax attention of float32 or float64 tensors.

    Args:
        q: [B,H,M,D]. k: [B,H,N,D]. v: [B,H,N,E].
        mask: None, or what is added to the scaled scores, of a shape that broadcasts to [B,H,M,N].

    Returns:
        The output [B,H,M,E], and m and tau of every row, [B,H,M,2].
    """
    batch, heads, queries, _ = q.shape
    keys, groups = k.shape[2], batch * heads
    query, key, value = (x.reshape(groups, x.shape[2], x.shape[3]) for x in (q, k, v))
    output = q.new_zeros(groups, queries, v.shape[3])
    thresholds = q.new_empty(groups, queries, 2)
    if output.numel() and keys:
        buffers = _Buffers(q, groups, queries, keys)
        for block in _blocks(groups, queries, keys, q.element_size()):
            scores, _, scratch = buffers.take(block.shape(keys))
            _halved_scores(query, key, mask, scale, heads, block, out=scores)
            largest, tau = rows.probabilities_(scores, scratch)
            thresholds[block.heads, block.queries, :1] = largest
            thresholds[block.heads, block.queries, 1:] = tau
            output[block.heads, block.queries] = torch.bmm(scores, value[block.heads])
    return output.view(batch, heads, queries, v.shape[3]), thresholds.view(batch, heads, queries, 2)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    thresholds: Tensor,
    scale: float,
    *,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and, when asked for, of the mask; arguments as of `forward`, `grad` [B,H,M,E] of its output."""
    batch, heads, queries, _ = q.shape
    keys, groups = k.shape[2], batch * heads
    query, key, value, grad = (x.reshape(groups, x.shape[2], x.shape[3]) for x in (q, k, v, grad))
    thresholds = thresholds.view(groups, queries, 2)
    dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    dmask = torch.zeros_like(mask) if mask is not None and mask_grad else None
    if grad.numel() and keys:
        buffers = _Buffers(q, groups, queries, keys)
        for block in _blocks(groups, queries, keys, q.element_size()):
            weights, dscores, scratch = buffers.take(block.shape(keys))
            group, part = block.heads, block.queries
            scaled = _halved_scores(query, key, mask, scale, heads, block, out=weights)
            torch.bmm(grad[group, part], value[group].transpose(1, 2), out=dscores)
            largest, tau = thresholds[group, part, :1], thresholds[group, part, 1:]
            rows.gradients_(weights, dscores, largest, tau, scratch)
            dv[group].baddbmm_(weights.transpose(1, 2), grad[group, part])
            dq[group, part] = torch.bmm(dscores, key[group]).mul_(scale)
            dk[group].baddbmm_(dscores.transpose(1, 2), scaled, alpha=2.0)  # `scaled` is half of scale * q
            if dmask is not None:
                _add_to_mask(dmask, dscores, heads, block)
    return dq.view_as(q), dk.view_as(k), dv.view_as(v), dmask


def _halved_scores(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, heads: int, block: _Block, out: Tensor
) -> Tensor:
    """(scale * q k^T + mask) / 2 into `out`; returns the scaled queries, scale / 2 * q."""
    scaled = query[block.heads, block.queries] * (0.5 * scale)
    torch.bmm(scaled, key[block.heads].transpose(1, 2), out=out)
    if mask is not None:
        pictures, head = _places(mask, heads, block)
        part = mask[pictures, head]
        out.add_(part[:, block.queries] if mask.shape[2] > 1 else part, alpha=0.5)
    return scaled


def _places(mask: Tensor, heads: int, block: _Block) -> tuple[Tensor, Tensor]:
    """Where the block's heads are in the first two dimensions of a mask that may be 1 there."""
    groups = torch.arange(block.first, block.last, device=mask.device)
    return (
        groups // heads if mask.shape[0] > 1 else torch.zeros_like(groups),
        groups % heads if mask.shape[1] > 1 else torch.zeros_like(groups),
    )


def _add_to_mask(dmask: Tensor, dscores: Tensor, heads: int, block: _Block) -> None:
    """Sums over the dimensions along which the mask was broadcast."""
    if dmask.shape[3] == 1:
        dscores = dscores.sum(2, keepdim=True)
    target = dmask
    if dmask.shape[2] == 1:
        dscores = dscores.sum(1, keepdim=True)
    else:
        target = dmask[:, :, block.queries]
    target.index_put_(_places(dmask, heads, block), dscores, accumulate=True)
