"""Effective rank against closed forms and an SVD in float64."""

import numpy as np
import pytest
import torch
from scipy.linalg import svdvals
from scipy.stats import entropy

from diffusionlens.analysis.similarity.rank import SecondMoments, chosen_tokens, effective_rank, roots, singular_values


def _oracle(rows: np.ndarray) -> float:
    return float(np.exp(entropy(svdvals(rows))))


def _streamed(rows: np.ndarray, sizes: list[int]) -> float:
    moments = SecondMoments(1, rows.shape[1])
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.add([torch.from_numpy(part).float()])
    moments.flush()
    return effective_rank(roots(moments.sums[0].numpy()))


@pytest.mark.parametrize("rank", [1, 2, 7, 48])
@pytest.mark.parametrize("tokens", [48, 500])
def test_orthogonal_directions_of_equal_energy_count_exactly(rank: int, tokens: int) -> None:
    rng = np.random.default_rng(rank)
    left = np.linalg.qr(rng.normal(size=(tokens, rank)))[0]
    right = np.linalg.qr(rng.normal(size=(48, rank)))[0]
    assert _streamed(30 * left @ right.T, [tokens]) == pytest.approx(rank, rel=1e-3)


@pytest.mark.parametrize("sizes", [[5000], [1] * 20 + [2500, 7, 2473], [700] * 7 + [100]])
def test_streaming_equals_an_svd_of_all_tokens(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(5000, 33)) * np.geomspace(1, 1e-3, 33) + rng.normal(size=33)).astype(np.float32)
    assert _streamed(rows, sizes) == pytest.approx(_oracle(rows.astype(np.float64)), rel=1e-5)


@pytest.mark.parametrize("shape", [(3, 20), (20, 3), (20, 20), (1, 5)])
def test_singular_values_equal_scipys(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).normal(size=shape)
    found = np.sort(singular_values(rows))[::-1]
    np.testing.assert_allclose(found, svdvals(rows), rtol=1e-7)


def test_rounding_error_has_no_rank() -> None:
    rows = np.outer(np.random.default_rng(0).normal(size=300), np.random.default_rng(1).normal(size=384))
    assert effective_rank(singular_values(rows)) == pytest.approx(1, abs=1e-4)
    assert effective_rank(singular_values(np.zeros((10, 4)))) == 0


def test_chosen_tokens_depend_on_seed_and_picture_only() -> None:
    first = chosen_tokens(3, 11, 196, 20)
    np.random.default_rng(5).normal(size=10)
    np.testing.assert_array_equal(first, chosen_tokens(3, 11, 196, 20))
    assert len(set(first.tolist())) == 20
    assert first.min() >= 0
    assert first.max() < 196
    assert not np.array_equal(first, chosen_tokens(3, 12, 196, 20))
    assert not np.array_equal(first, chosen_tokens(4, 11, 196, 20))
    np.testing.assert_array_equal(chosen_tokens(0, 0, 12, 50), np.arange(12))
