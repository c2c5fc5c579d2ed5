"""Forward and gradients of the kernels, interpreted, against float64 by sorting.

float32 and float16 only: Triton's interpreter multiplies bfloat16 wrongly. bfloat16 differs from float16 in nothing but the
element type of the products, and test_compiled.py compiles it.
"""

import pytest
import torch
from torch import Tensor

from tests.attention.triton.worker import Child, forward_and_backward, reference

NAMES = ("out", "threshold", "mean value", "dq", "dk", "dv")


def heads(rows: int, width: int, dtype: torch.dtype, generator: torch.Generator, std: float = 1.0) -> Tensor:
    """[1, 1, rows, width] as a model makes it: rows apart by more than their width."""
    wide = torch.randn(1, rows, 3, 1, width, generator=generator) * std
    return wide.to(dtype)[:, :, 1].transpose(1, 2)


def relative(found: Tensor, wanted: Tensor) -> float:
    """Norm of the error over the norm of the wanted; a wanted 0 is measured against 1."""
    scale = wanted.norm()
    return ((found.double() - wanted).norm() / (scale if scale > 0 else 1)).item()


def tolerances(dtype: torch.dtype, std: float) -> tuple[float, ...]:
    if dtype == torch.float16:
        return (1e-3, 1e-5, 1e-3, 1e-3, 1e-3, 1e-3)
    out = 1e-6 if std <= 1 else 1e-5
    return (out, out, out, 1e-5, 1e-5, 1e-5)


def check(interpreter: Child, dtype: torch.dtype, queries: int, keys: int, width: int, std: float) -> None:
    generator = torch.Generator().manual_seed(keys * 1000 + queries)
    q = heads(queries, width, dtype, generator, std)
    k, v, grad = (heads(count, width, dtype, generator) for count in (keys, keys, queries))
    found = interpreter.call(forward_and_backward, q, k, v, width**-0.5, None, grad)
    wanted = reference(q, k, v, width**-0.5, None, grad)
    assert found[0].dtype == dtype
    assert {found[1].dtype, found[2].dtype} == {torch.float32}
    assert [tensor.dtype for tensor in found[3:]] == [dtype] * 3
    for name, mine, theirs, tolerance in zip(NAMES, found, wanted, tolerances(dtype, std), strict=True):
        assert mine.shape == theirs.shape, name
        assert relative(mine, theirs) <= tolerance, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("queries", "keys", "width", "std"),
    [
        (1, 1, 16, 1.0),  # N = 1
        (5, 5, 16, 4.0),
        (16, 16, 48, 0.15),  # a head dimension that is no power of two, and its scale
        (3, 37, 64, 1.0),  # two tiles
        (37, 37, 64, 0.15),
        (67, 64, 16, 1.0),  # more queries than keys, and than one block of rows
        (19, 100, 64, 4.0),  # three tiles
        (20, 197, 64, 0.15),
        (18, 197, 48, 1.0),
        (7, 300, 16, 1.0),  # from here on streaming
        (17, 300, 64, 4.0),
        (5, 785, 16, 0.15),
    ],
)  # fmt: skip
def test_agrees_with_float64(
    interpreter: Child, dtype: torch.dtype, queries: int, keys: int, width: int, std: float
) -> None:
    check(interpreter, dtype, queries, keys, width, std)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("std", [0.15, 1.0, 4.0])
@pytest.mark.parametrize(
    ("queries", "keys", "width"),
    [(70, 197, 64), (197, 100, 48), (33, 256, 64), (66, 300, 64), (34, 785, 64), (20, 1025, 48), (9, 300, 130)],
)
def test_agrees_with_float64_in_larger_shapes(
    interpreter: Child, dtype: torch.dtype, std: float, queries: int, keys: int, width: int
) -> None:
    check(interpreter, dtype, queries, keys, width, std)


def packed_projection(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as views into one qkv projection [B, N, 3, H, D], as timm makes them, and a gradient of out."""
    generator = torch.Generator().manual_seed(5)
    qkv = torch.randn(2, 21, 3, 2, 16, generator=generator).to(dtype)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v, torch.randn(2, 21, 2, 16, generator=generator).to(dtype).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_reads_a_packed_projection_in_place(interpreter: Child, dtype: torch.dtype) -> None:
    q, k, v, grad = packed_projection(dtype)
    found = interpreter.call(forward_and_backward, q, k, v, 0.25, None, grad)
    apart = interpreter.call(forward_and_backward, *(t.contiguous() for t in (q, k, v)), 0.25, None, grad.contiguous())
    wanted = reference(q, k, v, 0.25, None, grad)
    for name, mine, same, theirs, tolerance in zip(NAMES, found, apart, wanted, tolerances(dtype, 1.0), strict=True):
        assert torch.equal(mine, same), name
        assert relative(mine, theirs) <= tolerance, name


def test_output_and_gradients_are_laid_out_for_the_projection(interpreter: Child) -> None:
    q, k, v, grad = packed_projection(torch.float32)
    out, threshold, mean_value, *gradients = interpreter.call(forward_and_backward, q, k, v, 0.25, None, grad)
    for tensor in (out, mean_value, *gradients):
        assert tensor.transpose(1, 2).view(2, 21, 32).shape == (2, 21, 32)  # `view` refuses to copy
    assert threshold.is_contiguous()


def test_two_runs_give_the_same_bits(interpreter: Child) -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v, grad = (heads(count, 16, torch.float32, generator) for count in (37, 70, 70, 37))
    first = interpreter.call(forward_and_backward, q, k, v, 0.25, None, grad)
    second = interpreter.call(forward_and_backward, q, k, v, 0.25, None, grad)
    for name, one, other in zip(NAMES, first, second, strict=True):
        assert torch.equal(one, other), name


def test_a_gradient_without_strides_is_taken(interpreter: Child) -> None:
    """What `out.sum().backward()` hands over: one number, expanded."""
    q, k, v, _ = packed_projection(torch.float32)
    grad = torch.ones(()).expand(2, 2, 21, 16)
    found = interpreter.call(forward_and_backward, q, k, v, 0.25, None, grad)
    wanted = reference(q, k, v, 0.25, None, grad)
    for name, mine, theirs in zip(NAMES, found, wanted, strict=True):
        assert relative(mine, theirs) <= 1e-5, name


@pytest.mark.parametrize("keys", [21, 300], ids=["on chip", "streaming"])
def test_a_negative_scale_turns_the_scores_around(interpreter: Child, keys: int) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v, grad = (heads(count, 16, torch.float32, generator) for count in (4, keys, keys, 4))
    found = interpreter.call(forward_and_backward, q, k, v, -0.5, None, grad)
    wanted = reference(q, k, v, -0.5, None, grad)
    for name, mine, theirs in zip(NAMES, found, wanted, strict=True):
        assert relative(mine, theirs) <= 1e-5, name


@pytest.mark.parametrize("shape", [(40,), (2, 1, 1, 40), (2, 1, 5, 40), (1, 2, 5, 1), (2, 2, 5, 40), (2, 1, 5, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_a_mask_is_added_to_the_scaled_scores(interpreter: Child, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    keys = max(40, shape[-1])
    q, k, v, grad = (torch.randn(2, 2, count, 16, generator=generator).to(dtype) for count in (5, keys, keys, 5))
    mask = torch.randn(shape, generator=generator).to(dtype)
    if shape[-1] > 1:
        mask[..., ::3] = -torch.inf
    found = interpreter.call(forward_and_backward, q, k, v, 0.25, mask, grad)
    wanted = reference(q, k, v, 0.25, mask, grad)
    for name, mine, theirs, tolerance in zip(NAMES, found, wanted, tolerances(dtype, 1.0), strict=True):
        assert relative(mine, theirs) <= tolerance, name
