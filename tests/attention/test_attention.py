"""The attention operator against whole maps in float64, and what an operator owes to torch."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.attention import compiled, entmax15_attention, entmax_attention
from diffusionlens.attention.functional import sparsemax_attention
from diffusionlens.errors import InputError
from tests.attention.oracle import attention_by_sorting, entmax15_by_sorting

IMPLEMENTATIONS = ["reference", "chunked", "compiled"]
OWN = IMPLEMENTATIONS[1:]
INF = float("inf")
every_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
own_implementations = pytest.mark.parametrize("impl", OWN)


def draw(*shape: int, std: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * std).to(dtype)


def triple(
    batch: int, heads: int, queries: int, keys: int, width: int, std: float = 1.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v whose logits have the standard deviation `std` at the default scale."""
    q = draw(batch, heads, queries, width, std=std, seed=1, dtype=dtype)
    k, v = (draw(batch, heads, keys, width, seed=seed, dtype=dtype) for seed in (2, 3))
    return q, k, v


def relative(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach(), expected.detach()
    return float((got.double() - expected).norm() / expected.norm().clamp(min=1e-9))


@every_implementation
@pytest.mark.parametrize(("std", "bound"), [(0.15, 1e-6), (1.0, 1e-6), (4.0, 3e-6), (20.0, 1e-5)])
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "width"),
    [
        (2, 3, 37, 37, 64),
        (1, 2, 197, 197, 64),
        (3, 1, 1, 1, 16),
        (2, 2, 5, 300, 24),
        (1, 1, 70, 9, 80),
        (1, 1, 600, 530, 8),
    ],
)
def test_values_and_gradients_in_float32(
    batch: int, heads: int, queries: int, keys: int, width: int, std: float, bound: float, impl: str
) -> None:
    if impl == "reference":
        bound *= 10  # the package's own accuracy in float32
    inputs = [x.requires_grad_() for x in triple(batch, heads, queries, keys, width, std)]
    grad = draw(batch, heads, queries, width, seed=4)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = attention_by_sorting(*exact, width**-0.5)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    output = entmax15_attention(*inputs, impl=impl)  # type: ignore[arg-type]
    got = torch.autograd.grad(output, inputs, grad)
    assert relative(output, expected) <= bound
    for name, ours, theirs in zip("qkv", got, wanted, strict=True):
        # With one key, q and k have no influence: the gradient is 0 in both.
        assert relative(ours, theirs) <= 5 * bound or (ours - theirs).abs().max() < 1e-6, name


@own_implementations
def test_a_head_whose_rows_are_damaged(impl: str) -> None:
    q, k, v = triple(1, 3, 6, 7, 16)
    q[0, 1, 2, 0] = float("nan")
    k[0, 2, 4, 5] = INF
    output = entmax15_attention(q, k, v, impl=impl)  # type: ignore[arg-type]
    assert output[0, 1, 2].isnan().all()
    assert torch.isfinite(output[0, 1, [0, 1, 3, 4, 5]]).all()
    positive = q[0, 2, :, 5] > 0
    assert output[0, 2, positive].isnan().all(), "+inf is the score of every query that points that way"
    assert torch.isfinite(output[0, 2, ~positive]).all(), "-inf for the others: a key that is not attended to"
    assert torch.isfinite(output[0, 0]).all()


@own_implementations
def test_a_damaged_row_has_a_damaged_gradient(impl: str) -> None:
    q, k, v = triple(1, 2, 4, 5, 16)
    q[0, 0, 1] = float("nan")
    inputs = [x.requires_grad_() for x in (q, k, v)]
    dq, dk, dv = torch.autograd.grad(entmax15_attention(*inputs, impl=impl).sum(), inputs)  # type: ignore[arg-type]
    assert dq[0, 0, 1].isnan().all()
    assert dk[0, 0].isnan().all()
    assert dv[0, 0].isnan().all()
    assert torch.isfinite(dq[0, 1]).all()
    assert torch.isfinite(dk[0, 1]).all()


@every_implementation
@pytest.mark.parametrize("shape", [(6, 9), (1, 9), (6, 1), (2, 1, 1, 9), (1, 3, 6, 9), (2, 3, 6, 9), (3, 1, 1)])
def test_masks_that_are_added(shape: tuple[int, ...], impl: str) -> None:
    inputs = [*triple(2, 3, 6, 9, 16), draw(*shape, seed=5)]
    inputs = [x.requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = attention_by_sorting(*exact[:3], 0.25, exact[3])
    grad = draw(2, 3, 6, 16, seed=6)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    q, k, v, mask = inputs
    output = entmax15_attention(q, k, v, attn_mask=mask, impl=impl)  # type: ignore[arg-type]
    got = torch.autograd.grad(output, inputs, grad)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5, check_dtype=False)
    torch.testing.assert_close(got, wanted, atol=5e-6, rtol=1e-5, check_dtype=False)
    without_mask_grad = entmax15_attention(q, k, v, attn_mask=mask.detach(), impl=impl)  # type: ignore[arg-type]
    torch.testing.assert_close(torch.autograd.grad(without_mask_grad, inputs[:3], grad), got[:3], atol=5e-6, rtol=1e-5)


@every_implementation
def test_masks_that_forbid(impl: str) -> None:
    inputs = [x.requires_grad_() for x in triple(2, 2, 5, 8, 16)]
    allowed = draw(2, 1, 5, 8, seed=7) > 0
    allowed[0, 0, 3] = False
    output = entmax15_attention(*inputs, attn_mask=allowed, impl=impl)  # type: ignore[arg-type]
    assert torch.equal(output[0, :, 3], torch.zeros(2, 16)), "a query that may attend to nothing"
    added = torch.zeros(2, 1, 5, 8).masked_fill(~allowed, -INF)
    same = entmax15_attention(*inputs, attn_mask=added, impl=impl)  # type: ignore[arg-type]
    assert torch.equal(output, same)
    grads = torch.autograd.grad(output.square().sum(), inputs)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert torch.equal(grads[0][0, :, 3], torch.zeros(2, 16))
    rows = [(b, q) for b in range(2) for q in range(5) if allowed[b, 0, q].any()]
    for b, row in rows:
        scores = (inputs[0][b, :, row, None] * inputs[1][b]).sum(-1).double() / 4
        weights = entmax15_by_sorting(scores.masked_fill(~allowed[b, 0, row], -INF))
        expected = (weights[:, None] @ inputs[2][b].double())[:, 0]
        torch.testing.assert_close(output[b, :, row].double(), expected, atol=1e-6, rtol=0)


@own_implementations
def test_one_hot_rows_are_exact(impl: str) -> None:
    q = torch.zeros(1, 1, 3, 16)
    k, v = torch.zeros(1, 1, 4, 16), draw(1, 1, 4, 16)
    q[0, 0, :, 0], k[0, 0, 2, 0] = 40, 40
    inputs = [x.requires_grad_() for x in (q, k, v)]
    output = entmax15_attention(*inputs, impl=impl)  # type: ignore[arg-type]
    assert torch.equal(output, v[:, :, [2, 2, 2]])
    dq, dk, dv = torch.autograd.grad(output.sum(), inputs)
    assert not dq.any()
    assert not dk.any()
    assert torch.equal(dv[0, 0, :, 0], torch.tensor([0.0, 0.0, 3.0, 0.0]))


@own_implementations
@pytest.mark.parametrize("scale", [None, 0.07, 1.0])
def test_scale_and_strides(scale: float | None, impl: str) -> None:
    packed = draw(2, 9, 3, 4, 16)  # timm's qkv
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    got = entmax15_attention(q, k, v, scale, impl=impl)  # type: ignore[arg-type]
    expected = attention_by_sorting(q, k, v, 0.25 if scale is None else scale)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5, check_dtype=False)
    contiguous = entmax15_attention(*(x.contiguous() for x in (q, k, v)), scale, impl=impl)  # type: ignore[misc, arg-type]
    assert torch.equal(got, contiguous)


@own_implementations
def test_values_may_be_wider_than_queries(impl: str) -> None:
    q, k, _ = triple(2, 2, 5, 7, 16)
    inputs = [x.requires_grad_() for x in (q, k, draw(2, 2, 7, 24))]
    output = entmax15_attention(*inputs, impl=impl)  # type: ignore[arg-type]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = attention_by_sorting(*exact, 0.25)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5, check_dtype=False)
    got, wanted = (torch.autograd.grad(o.square().sum(), x) for o, x in ((output, inputs), (expected, exact)))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5, check_dtype=False)


@every_implementation
@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 2, 3, 8), (0, 2, 4, 8)),
        ((2, 0, 3, 8), (2, 0, 4, 8)),
        ((2, 2, 0, 8), (2, 2, 4, 8)),
        ((2, 2, 3, 8), (2, 2, 0, 8)),
    ],
)
def test_nothing_to_do(shapes: tuple[tuple[int, ...], tuple[int, ...]], impl: str) -> None:
    if impl == "reference" and shapes[1][2] == 0:
        pytest.skip("the package does not take rows without keys")
    q, k, v = (torch.zeros(shapes[place], requires_grad=True) for place in (0, 1, 1))
    output = entmax15_attention(q, k, v, impl=impl)  # type: ignore[arg-type]
    assert torch.equal(output, torch.zeros(shapes[0]))
    assert all(
        torch.equal(g, torch.zeros_like(x))
        for g, x in zip(torch.autograd.grad(output.sum(), (q, k, v)), (q, k, v), strict=True)
    )


def test_gradcheck_in_float64() -> None:
    inputs = [x.requires_grad_() for x in triple(2, 2, 3, 5, 4, std=2, dtype=torch.float64)]
    mask = draw(1, 2, 1, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k, v, m: entmax15_attention(q, k, v, attn_mask=m), (*inputs, mask))


@own_implementations
def test_no_second_derivative(impl: str) -> None:
    inputs = [x.requires_grad_() for x in triple(1, 1, 3, 4, 8)]
    output = entmax15_attention(*inputs, impl=impl)  # type: ignore[arg-type]
    (grad,) = torch.autograd.grad(output.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="entmax15_attention_backward"):
        grad.sum().backward()


@every_implementation
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
def test_half_precision(dtype: torch.dtype, bound: float, impl: str) -> None:
    inputs = [x.requires_grad_() for x in triple(2, 2, 37, 37, 64, dtype=dtype)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = attention_by_sorting(*exact, 0.125)
    output = entmax15_attention(*inputs, impl=impl)  # type: ignore[arg-type]
    assert output.dtype == dtype
    assert relative(output, expected) <= bound
    grad = draw(2, 2, 37, 64, dtype=dtype)
    got = torch.autograd.grad(output, inputs, grad)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    assert all(
        ours.dtype == dtype and relative(ours, theirs) <= bound for ours, theirs in zip(got, wanted, strict=True)
    )


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_sum_to_one_under_autocast(dtype: torch.dtype, impl: str) -> None:
    q, k, _ = triple(2, 2, 197, 197, 64, std=0.15)
    ones = torch.ones(2, 2, 197, 64)  # attention over ones is the sum of the row
    with torch.autocast("cpu", dtype=dtype):
        sums = entmax15_attention(q, k, ones, impl=impl)  # type: ignore[arg-type]
        half = entmax15_attention(q.to(dtype), k.to(dtype), ones.to(dtype), impl=impl)  # type: ignore[arg-type]
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, ones, atol=2e-6, rtol=0)
    assert torch.equal(half, ones.to(dtype))


@own_implementations
def test_compiles_without_a_graph_break(impl: str) -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return entmax15_attention(q * 2, k, v, attn_mask=mask, impl=impl).transpose(1, 2).flatten(2).relu()  # type: ignore[arg-type]

    inputs = [x.requires_grad_() for x in triple(2, 2, 7, 7, 16)]
    mask = torch.zeros(1, 2, 7, 7)
    compiled_model = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected, got = model(*inputs, mask), compiled_model(*inputs, mask)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), atol=1e-6, rtol=1e-5
    )


@own_implementations
@pytest.mark.parametrize("mask_grad", [False, True])
def test_the_operator_is_what_it_says(impl: str, mask_grad: bool) -> None:
    """torch's own check: schema, autograd registration, and shapes and strides of the fake kernels."""
    inputs = [x.requires_grad_() for x in triple(2, 3, 4, 5, 8)]
    mask = torch.zeros(1, 3, 4, 5, requires_grad=mask_grad)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    operator: Any = torch.ops.diffusionlens.entmax15_attention.default
    torch.library.opcheck(operator, (*inputs, mask, 0.3, impl, True), test_utils=tests)
    with torch.no_grad():
        output, thresholds, mean = operator(*inputs, mask, 0.3, impl, True)
    backward: Any = torch.ops.diffusionlens.entmax15_attention_backward.default
    given = (output, *(x.detach() for x in inputs), mask.detach(), thresholds, mean, 0.3, impl, mask_grad)
    torch.library.opcheck(backward, given, test_utils=tests)


def test_same_result_on_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            inputs = [x.requires_grad_() for x in triple(1, 2, 50, 50, 16)]
            output = entmax15_attention(*inputs, impl="compiled")
            results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[0], results[1], atol=0, rtol=0)
    torch.testing.assert_close(results[0], results[2], atol=1e-5, rtol=1e-5)  # five threads share a head: other sums


@pytest.mark.parametrize("share", [0.0, 2.0])  # products by BLAS always, over the support always
def test_sparse_and_dense_products_agree(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_SPARSE", np.float32(share))
    q, k, v = triple(1, 2, 40, 60, 16, std=2)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    expected = attention_by_sorting(*exact, 0.25)
    output, thresholds = compiled.forward(q, k, v, None, 0.25)
    torch.testing.assert_close(output, expected.detach(), atol=1e-6, rtol=1e-5, check_dtype=False)
    grads = compiled.backward(output, q, k, v, None, thresholds, 0.25)
    wanted = torch.autograd.grad(expected, exact, output.double())
    torch.testing.assert_close(grads, wanted, atol=1e-5, rtol=1e-5, check_dtype=False)


@own_implementations
def test_memory_grows_with_the_tokens(impl: str) -> None:
    """What the operator allocates through torch, forward and backward, at twice the tokens: about twice as much."""

    def peak(tokens: int) -> int:
        inputs = [x.requires_grad_() for x in triple(1, 4, tokens, tokens, 16)]
        gc.collect()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            entmax15_attention(*inputs, impl=impl).sum().backward()  # type: ignore[arg-type]
        held = largest = 0
        for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.name() == "[memory]":
                held += event.nbytes()
                largest = max(largest, held)
        return largest

    peak(64)
    small, large = peak(768), peak(1536)
    whole_map = 4 * 1536 * 1536 * 4
    assert small > 0
    assert large < 2.5 * small or large < whole_map / 4
    assert large < whole_map


def test_other_alphas() -> None:
    q, k, v = triple(1, 2, 5, 6, 16)
    torch.testing.assert_close(entmax_attention(q, k, v, alpha=1), functional.scaled_dot_product_attention(q, k, v))
    assert torch.equal(entmax_attention(q, k, v, alpha=1.5), entmax15_attention(q, k, v))
    scores = (q.double() @ k.double().transpose(-1, -2)) / 4
    ordered = scores.sort(-1, descending=True).values
    cumulated = ordered.cumsum(-1) - 1
    count = torch.arange(1, 7)
    support = (ordered * count > cumulated).sum(-1, keepdim=True)
    weights = (scores - cumulated.gather(-1, support - 1) / support).clamp(min=0)
    expected = (weights @ v.double()).float()
    torch.testing.assert_close(entmax_attention(q, k, v, alpha=2), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        sparsemax_attention(q, k, v, attn_mask=torch.full((5, 6), -INF)), torch.zeros(1, 2, 5, 16), atol=0, rtol=0
    )
    with pytest.raises(InputError, match=r"alpha=1.7 is not available; wanted one of 1, 1.5, 2"):
        entmax_attention(q, k, v, alpha=1.7)


def test_what_is_refused() -> None:
    q, k, v = triple(2, 2, 5, 6, 16)
    for given, message in (
        ((q[0], k, v), "wanted four dimensions"),
        ((q, k[:, :1], v), "wanted"),
        ((q, k, v[:, :, :4]), "wanted"),
        ((q, k[..., :8], v), "wanted"),
        ((q, k.double(), v), "wanted one floating type"),
        ((q.long(), k.long(), v.long()), "wanted one floating type"),
        ((q, k.to("meta"), v), "wanted one device"),
    ):
        with pytest.raises(InputError, match=message):
            entmax15_attention(*given)
    with pytest.raises(InputError, match=r"mask of \(5, 5\); wanted a shape that broadcasts to \(2, 2, 5, 6\)"):
        entmax15_attention(q, k, v, attn_mask=torch.zeros(5, 5))
    with pytest.raises(InputError, match="boolean or a floating one"):
        entmax15_attention(q, k, v, attn_mask=torch.zeros(5, 6, dtype=torch.int64))


@pytest.mark.parametrize("impl", ["compiled", "chunked"])
@pytest.mark.parametrize("what", ["nan query", "inf query", "nan mask", "inf mask"])
def test_a_damaged_row_among_sparse_ones_is_nan_and_alone(impl: str, what: str) -> None:
    """Rows with few positive weights are multiplied by those alone; NaN is not positive, and must not be passed by."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 197, 64, generator=generator).unbind(0)
    q, mask = 20 * q, torch.zeros(1, 2, 197, 197)
    whole = entmax15_attention(q, k, v, attn_mask=mask, impl=impl)
    if "query" in what:
        q[0, 0, 5, 3] = float(what[:3])
    else:
        mask[0, 0, 5, 7] = float(what[:3])
    damaged = entmax15_attention(q, k, v, attn_mask=mask, impl=impl)
    assert damaged[0, 0, 5].isnan().all()
    others = torch.ones(1, 2, 197, dtype=torch.bool)
    others[0, 0, 5] = False
    torch.testing.assert_close(damaged[others], whole[others], rtol=1e-5, atol=1e-5)
