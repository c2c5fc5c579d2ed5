"""The public functions: `entmax15`, `entmax15_attention`, and `entmax_attention` for a choice of alpha."""

from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from diffusionlens.attention import operators
from diffusionlens.errors import InputError

Implementation = Literal["auto", "reference", "chunked", "compiled", "triton"]
"""reference: the entmax package, whole maps. chunked: plain PyTorch, any device and floating type. compiled: chunked with
Numba's rows, on the CPU. triton: on a GPU. auto: the fastest that the tensors allow."""

ALPHAS = (1.0, 1.5, 2.0)
_TRITON_HEAD_WIDTH = 256


def entmax15(scores: Tensor, dim: int = -1, *, impl: Implementation = "auto") -> Tensor:
    """Exact 1.5-entmax (Peters, Niculae and Martins 2019): like softmax, with exact zeros.

    Args:
        scores: any shape, any floating type; -inf entries get weight 0.
        dim: the dimension along which the result sums to 1.
        impl: see `Implementation`; "triton" is for attention alone.

    Returns:
        Weights of the type of `scores`, computed in float32 (float64 for float64). NaN or +inf make their row NaN; a row
        of -inf is 0. Differentiable once.

    Raises:
        InputError: not floating, no such dimension, or an `impl` that can't take the tensor.
    """
    if has_torch_function((scores,)):
        return handle_torch_function(entmax15, (scores,), scores, dim, impl=impl)
    if not scores.is_floating_point():
        raise InputError(f"entmax15 got scores of {scores.dtype}; wanted a floating type")
    if scores.dim() == 0 or not -scores.dim() <= dim < scores.dim():
        raise InputError(f"entmax15 got dim={dim} for scores of {scores.dim()} dimensions")
    chosen = _choose(impl, scores, rows_only=True)
    kind = operators.compute_type(scores.dtype)
    moved = scores.to(kind).movedim(dim, -1)
    if scores.numel() == 0:
        return torch.zeros_like(scores)
    if chosen == "reference":
        from diffusionlens.attention import reference

        weights = reference.rows(moved)
    else:
        weights = operators.entmax15_rows(moved.reshape(-1, moved.shape[-1]), chosen).view(moved.shape)
    return weights.movedim(-1, dim).to(scores.dtype)


def entmax15_into(scores: Tensor, weights: Tensor) -> Tensor:
    """1.5-entmax over the last dimension of contiguous float32 or float64 `scores`, into `weights`; without a gradient."""
    torch.mul(scores, 0.5, out=weights)
    operators.halved_to_weights_(weights.view(-1, weights.shape[-1]), _choose("auto", scores, rows_only=True))
    return weights


def sparsemax(scores: Tensor) -> Tensor:
    """Sparsemax (Martins and Astudillo 2016) over the last dimension, by the entmax package; edge values as of entmax15."""
    from diffusionlens.attention import reference

    return reference.sparsemax_rows(scores.to(operators.compute_type(scores.dtype))).to(scores.dtype)


def entmax15_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    *,
    impl: Implementation = "auto",
) -> Tensor:
    """Attention with exact 1.5-entmax in place of softmax: entmax15(scale * q k^T + mask) v.

    Memory grows with the number of tokens, not with its square (but for impl="reference").

    Args:
        q: [B,H,M,D]. k: [B,H,N,D]. v: [B,H,N,E]. Any strides; one floating type.
        scale: default D^-0.5.
        attn_mask: as of torch's scaled_dot_product_attention: boolean (True = may be attended to) or added to the
            scores; of a shape that broadcasts to [B,H,M,N]. A floating one gets its gradient.

    Returns:
        [B,H,M,E] of q's type, computed in float32 (float64 for float64), under autocast too. A row with a NaN or +inf
        score is NaN, a fully masked row 0. Differentiable once, deterministic.

    Raises:
        InputError: shapes or types do not fit, or `impl` can't take these tensors.
    """
    tensors = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    if has_torch_function(tensors):
        return handle_torch_function(entmax15_attention, tensors, q, k, v, scale, attn_mask, impl=impl)
    _check(q, k, v, attn_mask)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    chosen = _choose(impl, q, v.shape[-1], mask_grad=attn_mask is not None and attn_mask.requires_grad)
    mask = _additive(attn_mask, q)
    if chosen == "reference":
        from diffusionlens.attention import reference

        kind = operators.compute_type(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            added = None if mask is None else mask.to(kind)
            return reference.attention(q.to(kind), k.to(kind), v.to(kind), added, factor).to(q.dtype)
    for_backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    output: Tensor = operators.attention(q, k, v, mask, factor, chosen, for_backward)[0]
    return output


def entmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float = 1.5,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
) -> Tensor:
    """Attention with alpha-entmax: 1 is softmax (torch's fused kernel), 1.5 `entmax15_attention`, 2 sparsemax.

    Sparsemax (Martins and Astudillo 2016) holds whole maps in memory.

    Raises:
        InputError: another alpha.
    """
    if alpha == 1:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask, scale=scale)
    if alpha == 1.5:
        return entmax15_attention(q, k, v, scale, attn_mask)
    if alpha == 2:
        return sparsemax_attention(q, k, v, scale, attn_mask)
    raise InputError(f"alpha={alpha} is not available; wanted one of {', '.join(f'{a:g}' for a in ALPHAS)}")


def sparsemax_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention with sparsemax (entmax package), whole maps in memory; types and masks as of `entmax15_attention`."""
    tensors = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    if has_torch_function(tensors):
        return handle_torch_function(sparsemax_attention, tensors, q, k, v, scale, attn_mask)
    _check(q, k, v, attn_mask)
    kind = operators.compute_type(q.dtype)
    mask = _additive(attn_mask, q)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    with torch.autocast(q.device.type, enabled=False):
        scores = (q.to(kind) * factor) @ k.to(kind).transpose(-1, -2)
        weights = sparsemax(scores if mask is None else scores + mask.to(kind))
        return (weights @ v.to(kind)).to(q.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise InputError(f"attention got {shapes}; wanted four dimensions: pictures, heads, tokens, head width")
    fitting = q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[3] == k.shape[3] and k.shape[2] == v.shape[2]
    if not fitting:
        raise InputError(f"attention got {shapes}; wanted [B,H,M,D], [B,H,N,D] and [B,H,N,E]")
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise InputError(f"attention got q, k, v of {q.dtype}, {k.dtype}, {v.dtype}; wanted one floating type")
    if not q.device == k.device == v.device:
        raise InputError(f"attention got q, k, v on {q.device}, {k.device}, {v.device}; wanted one device")
    if mask is not None:
        wanted = (*q.shape[:3], k.shape[2])
        padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        if mask.dim() > 4 or any(had not in (1, full) for had, full in zip(padded, wanted, strict=True)):
            raise InputError(f"attention got a mask of {tuple(mask.shape)}; wanted a shape that broadcasts to {wanted}")
        if not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise InputError(f"attention got a mask of {mask.dtype}; wanted a boolean or a floating one")


def _additive(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """The mask as [.,.,.,.] to be added to the scores."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=operators.compute_type(q.dtype)).masked_fill_(~mask, -torch.inf)
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _choose(
    impl: str, tensor: Tensor, value_width: int = 0, *, rows_only: bool = False, mask_grad: bool = False
) -> str:
    if impl not in get_args(Implementation):
        raise InputError(f"impl='{impl}' does not exist; wanted one of {', '.join(get_args(Implementation))}")
    on_cpu = tensor.device.type == "cpu"
    compiled = on_cpu and tensor.dtype != torch.float64
    width = max(tensor.shape[-1], value_width)
    triton = (
        not rows_only
        and tensor.device.type == "cuda"
        and tensor.dtype != torch.float64
        and width <= _TRITON_HEAD_WIDTH
        and value_width == tensor.shape[-1]
        and not mask_grad
        and find_spec("triton") is not None
    )
    if impl == "auto":
        return "triton" if triton else "compiled" if compiled else "chunked"
    if impl == "triton" and not triton:
        raise InputError(
            "impl='triton' takes attention of float16, bfloat16 or float32 on a CUDA GPU, head widths up to "
            f"{_TRITON_HEAD_WIDTH}, masks without a gradient, and needs the package triton; use impl='auto'"
        )
    if impl == "compiled" and not compiled:
        raise InputError(f"impl='compiled' is for the CPU, not for {tensor.dtype} on {tensor.device}; use impl='auto'")
    return impl
