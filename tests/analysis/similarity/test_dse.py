"""Both forms of DSE on planted clusters, against loops and closed forms."""

import numpy as np
import pytest
from scipy.linalg import svdvals
from scipy.stats import entropy

from diffusionlens.analysis.similarity.dse import GROUP_CLUSTERS, DseParts, dse_code, dse_paper


def _planted(clusters: int, size: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens in clusters 100 apart and 1 wide, and their labels, mixed."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(clusters), size))
    centres = 100 * np.eye(clusters, width) + 20
    return centres[labels] + rng.normal(size=(len(labels), width)), labels


def test_paper_form_equals_its_definition_on_planted_clusters() -> None:
    tokens, labels = _planted(GROUP_CLUSTERS, 30, 32)
    means = [tokens[labels == k].mean(0) for k in range(GROUP_CLUSTERS)]
    squares = [
        min(float(((token - means[k]) ** 2).sum()) for k in range(GROUP_CLUSTERS) if k != own)
        for token, own in zip(tokens, labels, strict=True)
    ]
    spread = [svdvals(tokens[labels == k] - means[k]).sum() / 30 for k in range(GROUP_CLUSTERS)]
    found = dse_paper(tokens, seed=0)
    assert found.inter == pytest.approx(np.mean(squares), rel=1e-9)
    assert found.intra == pytest.approx(np.mean(spread), rel=1e-7)
    assert found.dim == pytest.approx(np.exp(entropy(svdvals(tokens))), rel=1e-7)


def test_total_weighs_the_dimension() -> None:
    assert DseParts(5, 2, 10).total(0.5) == 8


def test_code_form_on_a_line() -> None:
    # Eight pictures of three clusters each, all on one line, so that the dimension term is 1 / min(pictures, 1) = 1.
    size = 6
    places = 1000.0 * np.arange(24).reshape(8, 3)
    offsets = np.array([-2, -1, -1, 1, 1, 2.0])
    pictures = (places[:, :, None] + offsets).reshape(8, 3 * size, 1)
    scale = np.abs(pictures - pictures.mean()).mean()
    spread = np.sqrt((offsets**2).sum()) / np.sqrt(max(size - 1, 1))
    # The nearest other centroid is 1000 away from a token's own centroid; at both ends only on one side.
    inner, end = 1000 - np.abs(offsets), 1000 + np.concatenate([-offsets, offsets])
    inter = (22 * inner.sum() + end.sum()) / (24 * size)
    assert dse_code(pictures, seed=0) == pytest.approx((inter - spread) / scale + 1, rel=1e-6)


def test_code_form_of_one_direction_a_picture() -> None:
    # Every picture is one token repeated: no spread, the pictures sqrt(2) apart, full dimension.
    pictures = np.repeat(np.eye(8, 20)[:, None], 10, axis=1)
    assert dse_code(pictures, seed=0) == pytest.approx(np.sqrt(2) / np.sqrt(1 - 1 / 8) + 1, rel=1e-6)


def test_both_forms_are_the_same_again_for_the_same_seed() -> None:
    tokens = np.random.default_rng(3).normal(size=(400, 12))
    assert dse_paper(tokens, 4) == dse_paper(tokens, 4)
    assert dse_code(tokens.reshape(8, 50, 12), 4) == dse_code(tokens.reshape(8, 50, 12), 4)


def test_collapsed_tokens_give_no_warning_and_no_false_number() -> None:
    collapsed = np.ones((300, 8))
    assert dse_paper(collapsed, 0) == DseParts(0, 0, pytest.approx(1))
    assert np.isnan(dse_code(collapsed.reshape(3, 100, 8), 0))


def test_fewer_tokens_than_clusters() -> None:
    tokens = np.random.default_rng(0).normal(size=(10, 4))
    found = dse_paper(tokens, 0)
    distances = ((tokens[:, None] - tokens[None]) ** 2).sum(-1) + np.diag(np.full(10, np.inf))
    assert found.inter == pytest.approx(distances.min(1).mean())  # every token is its own centroid
    assert found.intra == 0
