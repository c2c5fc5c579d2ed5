"""PCA against scikit-learn, and the sign rule."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from diffusionlens.analysis.pca import align, joint_components, to_rgb

GRID = (5, 6)


@pytest.fixture
def tokens() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 30, 12)) * np.linspace(3, 0.5, 12)


def test_components_and_variance_are_scikit_learns(tokens: np.ndarray) -> None:
    scores, shares = joint_components(tokens, GRID)
    oracle = PCA(3).fit(tokens.reshape(-1, 12))
    np.testing.assert_allclose(shares, oracle.explained_variance_ratio_, rtol=1e-9)
    expected = oracle.transform(tokens.reshape(-1, 12))
    np.testing.assert_allclose(np.abs(scores.reshape(-1, 3)), np.abs(expected), atol=1e-9)


def test_turning_the_token_space_changes_nothing(tokens: np.ndarray) -> None:
    """A rotation and any flips of the axes leave the maps as they are: the solver's arbitrary signs can't show."""
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    plain, turned = joint_components(tokens, GRID)[0], joint_components(tokens @ rotation, GRID)[0]
    np.testing.assert_allclose(plain, turned, atol=1e-8)
    flipped = joint_components(tokens @ np.diag([-1.0] * 12), GRID)[0]
    np.testing.assert_allclose(plain, flipped, atol=1e-8)
    assert (to_rgb(plain) == to_rgb(flipped)).all()


def test_a_bright_middle_stays_bright() -> None:
    """Tokens that differ by distance to the centre only: the first component is larger in the middle, by the rule."""
    rows, columns = np.mgrid[0:5, 0:6]
    far = np.hypot(rows - 2, columns - 2.5).ravel()
    direction = np.eye(12)[3]
    for sign in (1, -1):
        planted = sign * far[None, :, None] * direction + np.zeros((2, 30, 12))
        first = joint_components(planted, GRID)[0][0, :, :, 0]
        assert first[2, 2] > first[0, 0]


def test_foreground_is_found(tokens: np.ndarray) -> None:
    planted = tokens.copy()
    middle = np.zeros(GRID, bool)
    middle[1:4, 2:4] = True
    planted[:, middle.ravel()] += 40 * np.eye(12)[11]
    scores, _ = joint_components(planted, GRID, foreground=True)
    assert (~np.isnan(scores[..., 0]) == middle).all()
    assert (to_rgb(scores)[:, ~middle] == 0).all()


def test_fewer_than_three_dimensions() -> None:
    scores, shares = joint_components(np.random.default_rng(0).normal(size=(1, 30, 2)), GRID)
    assert shares[2] == 0
    assert shares.sum() == pytest.approx(1)
    assert (scores[..., 2] == 0).all()
    assert joint_components(np.ones((1, 30, 4)), GRID)[1].tolist() == [0, 0, 0]


def test_alignment_undoes_a_turn_of_the_last_components(tokens: np.ndarray) -> None:
    scores, _ = joint_components(tokens, GRID)
    turned = scores.copy()
    turned[..., 1:] = scores[..., 1:] @ np.array([[0.6, 0.8], [0.8, -0.6]])
    np.testing.assert_allclose(align(turned, scores), scores, atol=1e-9)
    np.testing.assert_array_equal(align(turned, scores)[..., 0], turned[..., 0])
