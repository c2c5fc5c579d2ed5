"""Rows whose right value is known: closed forms, one key, no key, NaN and infinity, extreme logits, hard thresholds.

Queries are unit vectors and keys carry the logits in their columns, so that row r has exactly the logits wanted. Every case runs
on chip and, with keys of a far lower logit behind it, streaming.
"""

import math

import pytest
import torch
from entmax import entmax15
from torch import Tensor

from diffusionlens.errors import InputError
from tests.attention.triton.worker import Child, forward, forward_and_backward

INF = math.inf
LENGTHS = pytest.mark.parametrize("length", [16, 300], ids=["on chip", "streaming"])

ROWS: list[tuple[list[float], list[float]]] = [
    ([3.0], [1.0]),
    ([-2.5, -2.5], [0.5, 0.5]),
    ([1e4] * 5, [0.2] * 5),
    ([2.0, 0.0], [1.0, 0.0]),
    ([0.0, -40.0, -3.0], [1.0, 0.0, 0.0]),
    ([1.0, 0.0], [0.830719, 0.169281]),
    ([-2.0, 0.0, 0.5], [0.0, 0.326007, 0.673993]),
    ([0.0, 0.0, -1.0, -1.0], [0.466506, 0.466506, 0.033494, 0.033494]),
    ([1e6, 1e6 + 0.5, 1e6 + 1], [0.084136, 0.291667, 0.624198]),
    ([1e30, -1e30, 0.0], [1.0, 0.0, 0.0]),
    ([0.3, -INF, 0.1, -INF], [0.570534, 0.0, 0.429466, 0.0]),
    ([-INF, 7.0, -INF], [0.0, 1.0, 0.0]),
    ([0.3, -1e9, 0.1, -1e9], [0.570534, 0.0, 0.429466, 0.0]),
]


def with_logits(rows: list[Tensor], length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [1,1,16,16], k, v [1,1,length,16] and mask that give row r the logits rows[r] at scale 1, and no other key.

    An infinite logit comes from the mask: 0 times it would not be 0.
    """
    logits = torch.zeros(16, length)
    mask = torch.full((16, length), -INF)
    mask[:, 0] = 0
    for r, row in enumerate(rows):
        mask[r, : len(row)] = torch.where(row.isfinite(), 0.0, row)
        logits[r, : len(row)] = torch.where(row.isfinite(), row, 0.0)
    return torch.eye(16)[None, None], logits.T[None, None], torch.eye(length)[:, :16][None, None], mask


@LENGTHS
def test_closed_forms(interpreter: Child, length: int) -> None:
    q, k, v, mask = with_logits([torch.tensor(row) for row, _ in ROWS], length)
    out, _, _ = interpreter.call(forward, q, k, v, 1.0, mask, False)
    for r, (row, wanted) in enumerate(ROWS):
        weights = out[0, 0, r, : len(row)]
        torch.testing.assert_close(weights, torch.tensor(wanted), atol=6e-7, rtol=0, msg=str(row))
        for weight, known in zip(weights.tolist(), wanted, strict=True):
            assert weight == known or known not in (0.0, 1.0), row  # zeros and ones are exact
        assert out[0, 0, r, len(row) :].count_nonzero() == 0


@pytest.mark.parametrize("keys", [197, 785], ids=["on chip", "streaming"])
def test_equal_logits_share_the_weight_equally(interpreter: Child, keys: int) -> None:
    q = torch.full((1, 1, 1, 16), 25.0)
    k = torch.full((1, 1, keys, 16), 25.0)  # logits of 1e4
    v = torch.zeros(1, 1, keys, 16)
    v[0, 0, -1, 0] = 1
    out, threshold, _ = interpreter.call(forward, q, k, v, 1.0, None, False)
    assert out[0, 0, 0, 0].item() == pytest.approx(1 / keys, rel=1e-6)
    assert threshold.item() == pytest.approx(5000 - keys**-0.5, abs=3e-4)  # a unit in the last place of 5000


@LENGTHS
def test_hard_thresholds(interpreter: Child, length: int) -> None:
    """Rows on which a step may go astray: ramps, two levels, ties at the boundary, heavy tails; the weights sum to 1."""
    generator = torch.Generator().manual_seed(1)
    n = min(length, 256)
    steps = torch.arange(n, dtype=torch.float32)
    rows = [
        -steps / n,
        -steps * 0.02,
        -2 * steps,
        torch.cat([torch.zeros(1), torch.full((n - 1,), -1.9)]),
        torch.cat([torch.zeros(1), torch.full((n - 1,), -2.0)]),
        torch.cat([torch.zeros(n // 2), torch.full((n - n // 2,), -0.1)]),
        -(1.5**-steps),
        -2 * (steps / n) ** 0.1,
        -2 * (steps / n) ** 10,
        torch.randn(n, generator=generator).abs().pow(3),
        torch.randn(n, generator=generator).pow(-1).clamp(-50, 50),
        torch.randint(-2, 3, (n,), generator=generator).float(),
        torch.randn(n, generator=generator) * 20,
    ]  # fmt: skip
    q, k, v, mask = with_logits(rows, length)
    weights_of_first = v.clone()
    v = torch.cat([torch.ones(1, 1, length, 1), weights_of_first[..., :15]], -1)  # column 0: the sum of the weights
    out, threshold, _ = interpreter.call(forward, q, k, v, 1.0, mask, False)
    for r, row in enumerate(rows):
        wanted = entmax15(row.double(), dim=-1)
        assert out[0, 0, r, 0].item() == pytest.approx(1, abs=5e-7), r
        torch.testing.assert_close(out[0, 0, r, 1:16].double(), wanted[:15], atol=1e-6, rtol=0, msg=f"row {r}")
        again = (row.double() / 2 - threshold[0, 0, r].double()).clamp_min(0).square()
        torch.testing.assert_close(
            again, wanted, atol=2e-6 * max(1, row.abs().max().item() / 2), rtol=0, msg=f"row {r}"
        )


@LENGTHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_a_row_of_one_key_is_that_key_and_has_no_gradient(interpreter: Child, length: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(1, 1, n, 48, generator=generator).to(dtype) for n in (20, length, length))
    k = k * 60  # far apart, and 48 ** -0.5 is no power of two
    grad = torch.randn(1, 1, 20, 48, generator=generator).to(dtype)
    scores = 48**-0.5 * q.double() @ k.double().mT
    best = scores.topk(2).values
    assert (best[..., 0] - best[..., 1] > 2).sum() >= 18  # nearly all rows have one key only
    winner = scores.argmax(-1)[0, 0]
    single = (best[..., 0] - best[..., 1] > 2)[0, 0]
    q, grad = q[:, :, single], grad[:, :, single]
    out, _, mean_value, dq, dk, dv = interpreter.call(forward_and_backward, q, k, v, 48**-0.5, None, grad)
    assert torch.equal(out[0, 0], v[0, 0, winner[single]])
    assert torch.equal(mean_value[0, 0], v[0, 0, winner[single]].float())
    assert dq.count_nonzero() == 0
    assert dk.count_nonzero() == 0
    wanted = torch.zeros(length, 48, dtype=torch.float64).index_add_(0, winner[single], grad[0, 0].double())
    torch.testing.assert_close(dv[0, 0].double(), wanted, atol=1e-3 if dtype == torch.float16 else 1e-4, rtol=1e-3)


@LENGTHS
def test_a_row_without_a_key_is_zero_and_leaves_the_others_alone(interpreter: Child, length: int) -> None:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for n in (3, length, length))
    grad = torch.randn(1, 1, 3, 16, generator=generator)
    mask = torch.zeros(3, length)
    mask[1] = -INF
    found = interpreter.call(forward_and_backward, q, k, v, 0.25, mask, grad)
    rest = torch.tensor([0, 2])
    others = interpreter.call(forward_and_backward, q[:, :, rest], k, v, 0.25, None, grad[:, :, rest])
    out, threshold, mean_value, dq, dk, dv = found
    for tensor in (out, mean_value, dq):
        assert tensor[0, 0, 1].count_nonzero() == 0
    assert threshold[0, 0, 1] == INF
    for mine, wanted in zip((out, threshold, mean_value, dq), others[:4], strict=True):
        torch.testing.assert_close(mine[:, :, rest], wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(dk, others[4], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(dv, others[5], atol=1e-6, rtol=1e-5)


@LENGTHS
@pytest.mark.parametrize("place", ["query", "key", "mask NaN", "mask inf", "overflow"])
def test_an_invalid_score_makes_its_row_and_the_gradients_nan(interpreter: Child, length: int, place: str) -> None:
    generator = torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for n in (3, length, length))
    grad = torch.randn(1, 1, 3, 16, generator=generator)
    mask = torch.zeros(3, length)
    invalid = torch.tensor([False, True, False])
    if place == "query":
        q[0, 0, 1, 3] = math.nan
    elif place == "key":
        k[0, 0, length - 1, 2] = math.nan
        invalid[:] = True
    elif place == "overflow":
        q[0, 0, 1] = 3e38 * k[0, 0, 0].sign()
        k[0, 0, 0] = k[0, 0, 0].sign() * 10
    else:
        mask[1, length - 2] = math.nan if place == "mask NaN" else INF
    out, threshold, mean_value, dq, dk, dv = interpreter.call(forward_and_backward, q, k, v, 0.25, mask, grad)
    for tensor in (out, mean_value, dq):
        assert tensor[0, 0, invalid].isnan().all()
        assert tensor[0, 0, ~invalid].isfinite().all()
    assert torch.equal(threshold[0, 0].isnan(), invalid)
    assert dk.isnan().all()
    assert dv.isnan().all()


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_in_gives_nothing_out(interpreter: Child, batch: int, queries: int, keys: int) -> None:
    q, k, v = (torch.randn(batch, 2, n, 16) for n in (queries, keys, keys))
    out, threshold, mean_value, dq, dk, dv = interpreter.call(
        forward_and_backward, q, k, v, 0.25, None, torch.ones(batch, 2, queries, 16)
    )
    assert out.shape == mean_value.shape == dq.shape == q.shape
    assert threshold.shape == q.shape[:3]
    assert dk.shape == dv.shape == k.shape
    for tensor in (out, mean_value, dq, dk, dv):
        assert tensor.count_nonzero() == 0


def test_without_a_backward_there_is_no_mean_value(interpreter: Child) -> None:
    q = torch.randn(1, 2, 5, 16)
    _, _, mean_value = interpreter.call(forward, q, q, q, 0.25, None, False)
    assert mean_value.numel() == 0


@pytest.mark.parametrize(
    ("q", "k", "words"),
    [
        (torch.zeros(1, 1, 2, 16).double(), torch.zeros(1, 1, 2, 16).double(), "float64"),
        (torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16).half(), "float16"),
        (torch.zeros(1, 1, 2, 257), torch.zeros(1, 1, 2, 257), "at most 256"),
    ],
)
def test_what_it_does_not_take_is_refused_in_words(interpreter: Child, q: Tensor, k: Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        interpreter.call(forward, q, k, k, 0.25, None, False)
