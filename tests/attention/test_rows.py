"""The row operator against the definition in float64, and its values where other implementations break."""

import pytest
import torch
from entmax import entmax15 as package_entmax15
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffusionlens.attention import compiled, entmax15, rows
from diffusionlens.attention.functional import entmax15_into
from diffusionlens.errors import InputError
from tests.attention.oracle import entmax15_by_sorting

IMPLEMENTATIONS = ["reference", "chunked", "compiled"]
INF, NAN = float("inf"), float("nan")
every_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS)

# scores, weights: printed by the definition in float64 to six places, or exact.
EDGES = {
    "one key": ([3.0], [1.0]),
    "two equal": ([2.0, 2.0], [0.5, 0.5]),
    "gap of two": ([2.0, 0.0], [1.0, 0.0]),
    "gap of more": ([-7.0, 5.0, 1.0], [0.0, 1.0, 0.0]),
    "gap of one": ([1.0, 0.0], [0.830719, 0.169281]),
    "of the package's readme": ([-2.0, 0.0, 0.5], [0.0, 0.326007, 0.673993]),
    "ties": ([0.0, 0.0, -1.0, -1.0], [0.466506, 0.466506, 0.033494, 0.033494]),
    "large offset": ([1e6, 1e6 + 0.5, 1e6 + 1], [0.084136, 0.291667, 0.624198]),
    "huge": ([1e30, -1e30, 0.0], [1.0, 0.0, 0.0]),
    "largest float": ([3.4e38, 0.0, -3.4e38], [1.0, 0.0, 0.0]),
    "masked": ([0.3, -INF, 0.1, -INF], [0.570534, 0.0, 0.429466, 0.0]),
    "masked by a large number": ([0.3, -1e9, 0.1, -1e9], [0.570534, 0.0, 0.429466, 0.0]),
    "all but one masked": ([-INF, 4.0, -INF], [0.0, 1.0, 0.0]),
    "all masked": ([-INF, -INF, -INF], [0.0, 0.0, 0.0]),
    "NaN": ([0.0, NAN, 1.0], [NAN, NAN, NAN]),
    "plus infinity": ([0.0, INF, 1.0], [NAN, NAN, NAN]),
    "both infinities": ([-INF, INF, 1.0], [NAN, NAN, NAN]),
    "NaN among masked": ([-INF, NAN, -INF], [NAN, NAN, NAN]),
    "tie at the boundary": ([2.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
}


@every_implementation
@pytest.mark.parametrize("name", EDGES)
def test_values_at_the_edges(name: str, impl: str) -> None:
    scores, expected = (torch.tensor(x) for x in EDGES[name])
    alone = entmax15(scores, impl=impl)
    among = entmax15(torch.stack([torch.zeros_like(scores), scores, torch.ones_like(scores)]), impl=impl)
    for weights in (alone, among[1]):
        torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0, equal_nan=True)
        exact = (expected == 0) | (expected == 1)
        assert torch.equal(weights[exact], expected[exact])
    torch.testing.assert_close(among[0], torch.full_like(scores, 1 / len(scores)))  # neighbours of a bad row are whole


@every_implementation
@pytest.mark.parametrize("logit", [0.0, 1e4, -1e4])
def test_equal_scores_share_equally(logit: float, impl: str) -> None:
    weights = entmax15(torch.full((3, 197), logit), impl=impl)
    torch.testing.assert_close(weights, torch.full((3, 197), 1 / 197), atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("impl", ["chunked", "compiled"])
@pytest.mark.parametrize("std", [0.15, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("keys", [2, 5, 37, 197, 1025])
def test_accuracy_of_float32(keys: int, std: float, impl: str) -> None:
    scores = torch.randn(64, keys, generator=torch.Generator().manual_seed(keys)) * std
    weights = entmax15(scores, impl=impl)
    expected = entmax15_by_sorting(scores)
    assert (weights - expected).abs().max() <= 3e-7
    assert (weights.double().sum(-1) - 1).abs().max() <= 5e-7
    assert torch.equal(weights > 0, expected.float() > 0) or ((weights > 0) != (expected > 0)).sum() <= 2


def test_accuracy_of_float64() -> None:
    scores = torch.randn(64, 197, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = entmax15_by_sorting(scores)
    torch.testing.assert_close(entmax15(scores, impl="chunked"), expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(package_entmax15(scores, dim=-1), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("impl", ["chunked", "compiled"])
def test_integer_scores_with_many_ties(impl: str) -> None:
    scores = torch.randint(-3, 4, (5000, 23), generator=torch.Generator().manual_seed(0)).float()
    torch.testing.assert_close(entmax15(scores, impl=impl), entmax15_by_sorting(scores).float(), atol=2e-7, rtol=0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.floats(-64, 64, width=32, allow_subnormal=False),
            st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False),
            st.sampled_from([-INF, 0.0, 1.0]),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_row_is_a_distribution(values: list[float]) -> None:
    scores = torch.tensor(values)
    none = torch.zeros(len(values), dtype=torch.float64)
    expected = none if torch.isinf(scores).all() else entmax15_by_sorting(scores)
    for impl in IMPLEMENTATIONS[1:]:
        weights = entmax15(scores, impl=impl)  # type: ignore[arg-type]
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)


def test_shift_and_order_do_not_matter() -> None:
    scores = torch.randn(32, 65, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(65, generator=torch.Generator().manual_seed(4))
    for impl in ("chunked", "compiled"):
        weights = entmax15(scores, impl=impl)
        torch.testing.assert_close(entmax15(scores + 7, impl=impl), weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(entmax15(scores[:, order], impl=impl), weights[:, order], atol=2e-7, rtol=0)


@every_implementation
def test_gradient(impl: str) -> None:
    uniform = torch.zeros(4, requires_grad=True)
    entmax15(uniform, impl=impl)[0].backward()
    torch.testing.assert_close(uniform.grad, torch.tensor([0.375, -0.125, -0.125, -0.125]), atol=1e-6, rtol=0)
    rows_of = torch.tensor([[2.0, 0.0, -5.0], [-INF, 0.3, 0.1], [-INF, -INF, -INF]], requires_grad=True)
    grad = torch.tensor([[1.0, -2.0, 3.0]] * 3)
    (got,) = torch.autograd.grad(entmax15(rows_of, impl=impl), rows_of, grad)
    assert torch.equal(got[0], torch.zeros(3)), "one-hot: nothing to gain"
    assert got[1, 0] == 0
    assert torch.isfinite(got[:2]).all()
    assert abs(got[1].sum()) < 1e-6
    if impl != "reference":
        assert torch.equal(got[2], torch.zeros(3))


@pytest.mark.parametrize("keys", [1, 2, 7, 40])
@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_gradcheck(keys: int, std: float) -> None:
    scores = torch.randn(3, keys, dtype=torch.float64, generator=torch.Generator().manual_seed(keys)) * std
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: entmax15(s, impl="chunked"), (scores,))


@every_implementation
def test_gradient_agrees_with_autograd_through_the_definition(impl: str) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = (torch.randn(20, 50, generator=generator) * 1.5).requires_grad_()
    grad = torch.randn(20, 50, generator=generator)
    (got,) = torch.autograd.grad(entmax15(scores, impl=impl), scores, grad)
    (expected,) = torch.autograd.grad(entmax15_by_sorting(scores), scores, grad.double())
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=0, check_dtype=False)


def test_no_second_derivative() -> None:
    scores = torch.randn(3, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(entmax15(scores, impl="compiled").square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="entmax15_rows_backward"):
        grad.sum().backward()


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, impl: str) -> None:
    scores = (torch.randn(50, 197, generator=torch.Generator().manual_seed(1)) * 0.15).to(dtype)
    weights = entmax15(scores, impl=impl)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, entmax15_by_sorting(scores).to(dtype), atol=0, rtol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = entmax15(scores.float(), impl=impl)
    assert inside.dtype == torch.float32
    assert (inside.double().sum(-1) - 1).abs().max() < 3e-6


@every_implementation
def test_dimension_and_layout(impl: str) -> None:
    scores = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(2)).transpose(0, 2)
    for dim in (-3, 0, 1, 2, -1):
        weights = entmax15(scores, dim, impl=impl)
        expected = entmax15_by_sorting(scores.movedim(dim, -1)).movedim(-1, dim).float()
        torch.testing.assert_close(weights, expected, atol=3e-7, rtol=0)
    assert entmax15(torch.empty(0, 5), impl=impl).shape == (0, 5)
    assert entmax15(torch.empty(5, 0), impl=impl).shape == (5, 0)


def test_into_a_buffer() -> None:
    scores = torch.randn(2, 3, 9)
    weights = torch.empty(2, 3, 9)
    assert entmax15_into(scores, weights) is weights
    torch.testing.assert_close(weights, entmax15_by_sorting(scores).float(), atol=3e-7, rtol=0)


def test_both_solvers_leave_the_threshold_that_made_the_row() -> None:
    scores = torch.randn(40, 33, generator=torch.Generator().manual_seed(8)) * 3
    for module in (rows, compiled):
        weights = scores / 2
        largest, tau = module.probabilities_(weights, torch.empty(2, 40, 33))
        assert torch.equal(largest[:, 0], scores.amax(-1) / 2)
        torch.testing.assert_close((scores / 2 - largest - tau).clamp(min=0).square(), weights)


def test_gradients_in_place_agree() -> None:
    generator = torch.Generator().manual_seed(9)
    scores = torch.randn(40, 33, generator=generator)
    grad = torch.randn(40, 33, generator=generator)
    made: list[tuple[Tensor, Tensor]] = []
    for module in (rows, compiled):
        halved, change = scores / 2, grad.clone()
        largest, tau = module.probabilities_(halved.clone(), torch.empty(2, 40, 33))
        module.gradients_(halved, change, largest, tau, torch.empty(2, 40, 33))
        made.append((halved, change))
    torch.testing.assert_close(made[0], made[1], atol=1e-6, rtol=1e-5)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="wanted a floating type"):
        entmax15(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="dim=1 for scores of 1 dimensions"):
        entmax15(torch.zeros(3), 1)
    with pytest.raises(InputError, match="impl='fast' does not exist"):
        entmax15(torch.zeros(3), impl="fast")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="impl='triton' takes attention"):
        entmax15(torch.zeros(3), impl="triton")
    with pytest.raises(InputError, match="impl='compiled' is for the CPU"):
        entmax15(torch.zeros(3, dtype=torch.float64), impl="compiled")
