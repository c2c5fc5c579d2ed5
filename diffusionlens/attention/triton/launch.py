"""Launching the kernels: plain functions on tensors, without autograd.

A launch is described by a `Call` before it is made, so that the tests compile exactly what is launched.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from diffusionlens.attention.triton.backward import backward_keys, backward_queries
from diffusionlens.attention.triton.forward_rows import forward_rows
from diffusionlens.attention.triton.forward_stream import forward_stream
from diffusionlens.attention.triton.heads import Shape, heads_of
from diffusionlens.attention.triton.tiling import (
    FLOAT_CHUNK,
    MAX_HEAD_DIM,
    Tiling,
    key_tiles,
    padded_width,
    tail_width,
    tilings,
)
from diffusionlens.errors import InputError

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Call:
    """A kernel with all it is launched with."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]
    constants: dict[str, Any]
    tiling: Tiling

    def options(self) -> dict[str, int]:
        """Compiler options of the launch."""
        return {"num_warps": self.tiling.warps, "num_stages": self.tiling.stages}

    def run(self) -> None:
        """Launches the kernel on the current device and stream."""
        self.kernel[(self.programs,)](**self.arguments, **self.constants, **self.options())


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, *, for_backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Entmax-1.5 attention of q [B, H, M, D] over k, v [B, H, N, D], any strides, D <= 256, float32, float16 or bfloat16.

    `mask` is a floating tensor broadcastable to [B, H, M, N] that is added to the scaled scores; -inf takes a key out.
    Returns out [B, H, M, D] in q's dtype, laid out as [B, M, H, D]; threshold [B, H, M] float32, so that a weight is
    relu(score / 2 - threshold)^2; and the mean value (u V) / sum u, u = sqrt of the weights, [B, H, M, D] float32 (empty unless
    `for_backward`). A row with a NaN or +inf score gives NaN, a row without a key 0. Raises `InputError` for other dtypes and D.
    """
    _check(q, k, v)
    q, k, v = (_with_dense_rows(tensor) for tensor in (q, k, v))
    batch, heads, queries, _ = q.shape
    out = _empty_heads(q, q.dtype)
    threshold = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    mean_value = _empty_heads(q, torch.float32) if for_backward else q.new_empty(0, dtype=torch.float32)
    if k.shape[2] == 0:
        return out.zero_(), threshold.fill_(math.inf), mean_value.zero_()
    if out.numel():
        with _on_device_of(q):
            forward_call(q, k, v, scale, mask, out, threshold, mean_value if for_backward else None).run()
    return out, threshold, mean_value


def attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    threshold: Tensor,
    mean_value: Tensor,
    scale: float,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, each laid out as [B, rows, H, D]; the same bits in every run.

    `threshold` and `mean_value` are those of `attention_forward(..., for_backward=True)`. A row of one key, or of none, has
    no gradient: exactly 0. A mask gets no gradient.
    """
    _check(q, k, v)
    grad_out, q, k, v, mean_value = (_with_dense_rows(tensor) for tensor in (grad_out, q, k, v, mean_value))
    grad_q, grad_k, grad_v = (_empty_heads(tensor, q.dtype) for tensor in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        return grad_q.zero_(), grad_k.zero_(), grad_v.zero_()
    given = (grad_out, q, k, v, threshold.contiguous(), mean_value, scale, mask)
    with _on_device_of(q):
        for call in backward_calls(*given, grad_q, grad_k, grad_v):
            call.run()
    return grad_q, grad_k, grad_v


def forward_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    out: Tensor,
    threshold: Tensor,
    mean_value: Tensor | None,
) -> Call:
    """The launch of the forward: whole rows on chip while they fit, else streaming."""
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    table = tilings(padded_width(head_dim), q.dtype, masked=mask is not None)
    arguments = {
        "q": heads_of(q),
        "k": heads_of(k),
        "v": heads_of(v),
        "mask": None if mask is None else heads_of(mask.expand(batch, heads, queries, keys)),
        "out": heads_of(out),
        "mean_value": None if mean_value is None else heads_of(mean_value),
        "threshold": threshold,
        "half_scale": scale / 2,
        "heads": heads,
        "query_count": queries,
        "key_count": keys,
    }
    # The step after the last test leaves an error of about its square: far below what the output's dtype can show.
    constants = {**_shared_constants(q), "TOLERANCE": 1e-4 if q.dtype == torch.float32 else 5e-3}
    whole = table.whole_rows(keys)
    if whole is None:
        tiling = table.stream
        constants |= {"ROWS": tiling.rows, "KEYS": tiling.keys, **_loop(q, keys, tiling.keys)}
        return Call(forward_stream, _programs(q, tiling.rows), arguments, constants, tiling)
    constants |= {
        "ROWS": whole.rows,
        "TILES": key_tiles(keys, whole.keys),
        "SCALE_LATE": mask is None and scale > 0 and math.frexp(scale)[0] == 0.5,
        "QUADRATIC_STEPS": 3 if q.dtype == torch.float32 else 2,
    }
    return Call(forward_rows, _programs(q, whole.rows), arguments, constants, whole)


def backward_calls(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    threshold: Tensor,
    mean_value: Tensor,
    scale: float,
    mask: Tensor | None,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
) -> tuple[Call, Call]:
    """The two launches of the backward, in their order: the second reads what the first leaves of every row."""
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    table = tilings(padded_width(head_dim), q.dtype, masked=mask is not None)
    delta, spread = torch.empty_like(threshold), torch.empty_like(threshold)
    shared = {
        "grad_out": heads_of(grad_out),
        "q": heads_of(q),
        "k": heads_of(k),
        "v": heads_of(v),
        "mask": None if mask is None else heads_of(mask.expand(batch, heads, queries, keys)),
        "threshold": threshold,
        "half_scale": scale / 2,
        "heads": heads,
        "query_count": queries,
        "key_count": keys,
    }
    by_queries = {
        "mean_value": heads_of(mean_value),
        "grad_q": heads_of(grad_q),
        "delta_out": delta,
        "spread_out": spread,
    }
    by_keys = {"grad_k": heads_of(grad_k), "grad_v": heads_of(grad_v), "delta_in": delta, "spread_in": spread}
    of_queries, of_keys = table.backward_queries, table.backward_keys
    return (
        Call(
            backward_queries,
            _programs(q, of_queries.rows),
            shared | by_queries,
            _shared_constants(q)
            | {"ROWS": of_queries.rows, "KEYS": of_queries.keys, **_loop(q, keys, of_queries.keys)},
            of_queries,
        ),
        Call(
            backward_keys,
            _programs(k, of_keys.keys),
            shared | by_keys,
            _shared_constants(q) | {"ROWS": of_keys.rows, "KEYS": of_keys.keys, **_loop(q, queries, of_keys.rows)},
            of_keys,
        ),
    )


def _shared_constants(q: Tensor) -> dict[str, Any]:
    head_dim = q.shape[-1]
    width = padded_width(head_dim)
    chunk = min(width, FLOAT_CHUNK) if q.dtype == torch.float32 else width
    return {"SHAPE": Shape(head_dim, width, chunk), "PTX": not triton.knobs.runtime.interpret}


def _loop(q: Tensor, count: int, tile: int) -> dict[str, Any]:
    """How a kernel goes over `count` rows: whole tiles and a narrow one for the rest; in float32 one kind of tile, which fits."""
    checked = q.dtype == torch.float32
    return {"CHECKED": checked, "TAIL": 0 if checked else tail_width(count, tile)}


def _programs(tensor: Tensor, rows: int) -> int:
    batch, heads, count, _ = tensor.shape
    return int(triton.cdiv(count, rows)) * batch * heads


def _empty_heads(like: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, H, M, D] whose memory is [B, M, H, D], as the projection behind the attention wants it."""
    batch, heads, rows, width = like.shape
    return torch.empty((batch, rows, heads, width), dtype=dtype, device=like.device).transpose(1, 2)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        given = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in (q, k, v))
        raise InputError(f"attention by Triton got q, k, v of {given}; it takes all float32, float16 or bfloat16")
    if q.shape[-1] > MAX_HEAD_DIM:
        raise InputError(
            f"attention by Triton got heads of {q.shape[-1]} dimensions; at most {MAX_HEAD_DIM} fit: take another implementation"
        )
