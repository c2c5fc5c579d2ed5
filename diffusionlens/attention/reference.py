"""1.5-entmax by the `entmax` package, in float32 or float64: what the other implementations are compared with."""

import torch
from entmax import entmax15 as _entmax15
from entmax import sparsemax as _sparsemax
from torch import Tensor


def rows(scores: Tensor) -> Tensor:
    """1.5-entmax over the last dimension of [...,n] float32 or float64. Rows that the package can't take (it fails on NaN
    and on rows of -inf) are given their values here: NaN for a row with NaN or +inf, 0 for a row of -inf."""
    damaged = (scores.isnan() | (scores == torch.inf)).any(-1, keepdim=True)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = _entmax15(scores.masked_fill(damaged | empty, 0.0), dim=-1)
    return weights.masked_fill(empty, 0.0).masked_fill(damaged, torch.nan)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention with the whole [B,H,M,N] in memory; differentiable by the package's own gradient."""
    scores = (q * scale) @ k.transpose(-1, -2)
    return rows(scores if mask is None else scores + mask) @ v


def sparsemax_rows(scores: Tensor) -> Tensor:
    """Sparsemax over the last dimension, with the same values for damaged and empty rows."""
    damaged = (scores.isnan() | (scores == torch.inf)).any(-1, keepdim=True)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = _sparsemax(scores.masked_fill(damaged | empty, 0.0), dim=-1)
    return weights.masked_fill(empty, 0.0).masked_fill(damaged, torch.nan)
