"""1.5-entmax as operators of torch: opaque to torch.compile (no graph break), differentiable once, fp32 inside under autocast.

Half-precision tensors are computed in float32 and rounded once at the end: the rows would not sum to 1 otherwise.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from diffusionlens.attention import blocks
from diffusionlens.attention import rows as torch_rows

_NAMESPACE = "diffusionlens"


def _solver(implementation: str) -> ModuleType:
    if implementation == "compiled":
        from diffusionlens.attention import compiled  # Numba takes half a second to import

        return compiled
    return torch_rows


def compute_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _no_autocast(tensor: Tensor) -> torch.autocast:
    return torch.autocast(tensor.device.type, enabled=False)


# --- rows ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op(f"{_NAMESPACE}::entmax15_rows", mutates_args=())
def entmax15_rows(scores: Tensor, implementation: str) -> Tensor:
    """1.5-entmax over the last dimension of [R,n], float32 or float64."""
    with _no_autocast(scores):
        return halved_to_weights_(scores.contiguous() * 0.5, implementation)


@entmax15_rows.register_fake
def _(scores: Tensor, implementation: str) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@torch.library.custom_op(f"{_NAMESPACE}::entmax15_rows_backward", mutates_args=())
def entmax15_rows_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the scores from that of the weights [R,n]: u (g - <u,g> / <u,1>), u = sqrt(p)."""
    with _no_autocast(grad):
        lifted = weights.sqrt()
        total = lifted.sum(-1, keepdim=True)
        mean = (lifted * grad).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
        return lifted * (grad - mean)


@entmax15_rows_backward.register_fake
def _(grad: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(weights)


def _rows_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _rows_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return entmax15_rows_backward(grad, ctx.saved_tensors[0]), None


entmax15_rows.register_autograd(_rows_gradient, setup_context=_rows_context)


def halved_to_weights_(halved: Tensor, implementation: str) -> Tensor:
    """Contiguous halved scores [R,n] to weights, in place, without a gradient."""
    solver = _solver(implementation)
    for start, stop in _row_blocks(halved):
        part = halved[start:stop]
        solver.probabilities_(part, _scratch(part, implementation))
    return halved


def _row_blocks(table: Tensor) -> list[tuple[int, int]]:
    count, keys = table.shape
    step = max(1, (1 << 21) // max(1, keys * table.element_size())) if table.device.type == "cpu" else max(1, count)
    return [(start, min(start + step, count)) for start in range(0, count, step)] if keys else []


def _scratch(part: Tensor, implementation: str) -> Tensor | None:
    return None if implementation == "compiled" else part.new_empty(2, *part.shape)


# --- attention -----------------------------------------------------------------------------------------------------


@torch.library.custom_op(f"{_NAMESPACE}::entmax15_attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, implementation: str, for_backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [B,H,M,E], and what the backward pass needs: the rows' thresholds, and for Triton the mean values."""
    with _no_autocast(q):
        if implementation == "triton":
            from diffusionlens.attention.triton import launch

            output, threshold, mean_value = launch.attention_forward(q, k, v, scale, mask, for_backward=for_backward)
            return output, threshold, mean_value if mean_value is not None else _nothing(q)
        kind = compute_type(q.dtype)
        given = (q.to(kind), k.to(kind), v.to(kind), _to(mask, kind), scale)
        if implementation == "compiled":
            from diffusionlens.attention import compiled

            output, thresholds = compiled.forward(*given)
        else:
            output, thresholds = blocks.forward(*given)
        return output.to(q.dtype), thresholds, _nothing(q)


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, implementation: str, for_backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    if implementation == "triton":
        output = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
        threshold = q.new_empty(batch, heads, queries, dtype=torch.float32)
        mean = torch.empty_like(output, dtype=torch.float32) if for_backward else _nothing(q)
        return output, threshold, mean
    if implementation == "compiled":
        output = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    else:
        output = q.new_empty(batch, heads, queries, v.shape[3])
    return output, q.new_empty(batch, heads, queries, 2, dtype=compute_type(q.dtype)), _nothing(q)


@torch.library.custom_op(f"{_NAMESPACE}::entmax15_attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    mean_value: Tensor,
    scale: float,
    implementation: str,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the mask (empty unless asked for)."""
    with _no_autocast(q):
        if implementation == "triton":
            from diffusionlens.attention.triton import launch

            return *launch.attention_backward(grad, q, k, v, threshold, mean_value, scale, mask), _nothing(q)
        kind = compute_type(q.dtype)
        given = (grad.to(kind), q.to(kind), k.to(kind), v.to(kind), _to(mask, kind), threshold, scale)
        dmask: Tensor | None = None
        if implementation == "compiled" and not mask_grad:
            from diffusionlens.attention import compiled

            dq, dk, dv = compiled.backward(*given)
        else:
            dq, dk, dv, dmask = blocks.backward(*given, mask_grad=mask_grad)
        dmask = _nothing(q) if dmask is None or mask is None else dmask.to(mask.dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dmask


@attention_backward.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    threshold: Tensor,
    mean_value: Tensor,
    scale: float,
    implementation: str,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if implementation == "triton" or (implementation == "compiled" and not mask_grad):
        dq, dk, dv = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
    else:
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    wanted = mask is not None and mask_grad
    return dq, dk, dv, torch.empty_like(mask) if wanted and mask is not None else _nothing(q)


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)


def _to(mask: Tensor | None, kind: torch.dtype) -> Tensor | None:
    return None if mask is None else mask.to(kind)


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.scale, ctx.implementation, _ = inputs
    ctx.save_for_backward(q, k, v, mask, output[1], output[2])
    ctx.mark_non_differentiable(output[1], output[2])


def _attention_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    q, k, v, mask, threshold, mean_value = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3]
    dq, dk, dv, dmask = attention_backward(
        grad, q, k, v, mask, threshold, mean_value, ctx.scale, ctx.implementation, wanted
    )
    return dq, dk, dv, dmask if wanted else None, None, None, None


attention.register_autograd(_attention_gradient, setup_context=_attention_context)
