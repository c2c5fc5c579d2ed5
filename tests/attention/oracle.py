"""1.5-entmax in float64 by its definition: sort, and take the largest support whose threshold leaves all of it positive."""

import torch
from torch import Tensor


def entmax15_by_sorting(scores: Tensor) -> Tensor:
    """[...,n] -> [...,n], float64; finite or -inf scores, one finite at least (Peters, Niculae and Martins 2019, appendix)."""
    halved = scores.double() / 2
    halved = halved - halved.amax(-1, keepdim=True)
    ordered = halved.sort(-1, descending=True).values.clamp(min=-1e6)  # -inf would make NaN of the sums
    count = torch.arange(1, ordered.shape[-1] + 1, dtype=torch.float64)
    mean = ordered.cumsum(-1) / count
    spread = count * (ordered.square().cumsum(-1) / count - mean.square())
    threshold = mean - ((1 - spread) / count).clamp(min=0).sqrt()
    support = (threshold <= ordered).sum(-1, keepdim=True)
    return (halved - threshold.gather(-1, support - 1)).clamp(min=0).square()


def attention_by_sorting(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention with whole maps in float64, differentiable through the sort by autograd."""
    scores = scale * q.double() @ k.double().transpose(-1, -2)
    return entmax15_by_sorting(scores if mask is None else scores + mask.double()) @ v.double()
