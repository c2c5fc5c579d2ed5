"""What is stored against float64, and never more bytes than promised."""

import numpy as np
import pytest

from diffusionlens.explorer import attention, cosines
from diffusionlens.explorer.attention import pack_attention, unpack_attention
from diffusionlens.explorer.cosines import pack_cosines, unpack_cosines
from diffusionlens.explorer.size import Extent, most_pictures

POINTS = 65


def tokens(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:8, 0:8] / 8
    return {
        "noise": rng.normal(size=(POINTS, 384)),
        "two dimensions": rng.normal(size=(POINTS, 2)),  # every cosine from -1 to 1
        "alike": np.ones(384) + 0.01 * rng.normal(size=(POINTS, 384)),
        "opposite": np.outer(rng.choice([-1.0, 1.0], POINTS), rng.normal(size=384)),
        "smooth": np.stack([np.cos((k + 1) * rows + k * columns).ravel() for k in range(16)], 1),
        "huge and tiny": rng.normal(size=(POINTS, 384)) * 10.0 ** rng.integers(-12, 12, (POINTS, 1)),
        "half precision": rng.normal(size=(POINTS, 384)).astype(np.float16),
        "one": rng.normal(size=(1, 384)),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["noise", "two dimensions", "alike", "opposite", "smooth", "huge and tiny", "half precision", "one"],
)
def test_cosines_are_those_of_the_tokens(kind: str) -> None:
    planted = tokens(kind)
    wide = planted.astype(np.float64)
    expected = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in wide] for a in wide])
    packed = pack_cosines(planted)
    error = np.abs(unpack_cosines(packed, len(planted)) - expected).max()
    assert error <= packed.error + 1e-12
    assert packed.error <= 1 / (packed.levels - 1) < 0.02
    assert packed.levels == 201 or kind == "two dimensions"  # only what can't be foretold is stored more coarsely


def test_a_token_of_nothing_is_like_no_other() -> None:
    planted = tokens("noise")
    planted[3] = 0
    stored = unpack_cosines(pack_cosines(planted), POINTS)
    assert np.abs(np.delete(stored[3], 3)).max() < 1e-12


def test_damaged_tokens_are_refused() -> None:
    planted = tokens("noise")
    planted[3, 3] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        pack_cosines(planted)


@pytest.mark.parametrize("seed", range(4))
def test_no_tokens_take_more_than_promised(seed: int) -> None:
    """Directions in two dimensions are the worst case: cosines take every value, and neighbours foretell nothing."""
    rng = np.random.default_rng(seed)
    for points in (2, 50, 257):
        for width in (2, 3, 5, 400):
            packed = pack_cosines(rng.normal(size=(points, width)))
            assert len(packed.data) <= cosines.most_bytes(points)


def weights(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    raw = {
        "even": np.ones((65, 66)),
        "noise": rng.random((65, 66)),
        "softmax": np.exp(3 * rng.normal(size=(65, 66))),
        "sparse": np.maximum(rng.normal(size=(65, 66)) - 1, 0) + 1e-9 * (rng.random((65, 66)) > 0.9),
        "peaks": np.eye(65, 66),
    }[kind]
    return raw / raw.sum(1, keepdims=True)


@pytest.mark.parametrize("kind", ["even", "noise", "softmax", "sparse", "peaks"])
def test_attention_is_that_of_the_rows(kind: str) -> None:
    planted = weights(kind)
    packed = pack_attention(planted)
    stored = unpack_attention(packed, 65)
    assert np.abs(stored - planted).max() <= packed.error + 1e-12
    # Half a step of the square root, or a whole one where a small weight is kept from 0.
    assert (np.abs(np.sqrt(stored) - np.sqrt(planted)) <= np.sqrt(planted.max(1, keepdims=True)) / packed.levels).all()
    assert ((stored == 0) == (planted == 0)).all()
    np.testing.assert_allclose(stored.max(1), planted.max(1), rtol=1e-6)
    assert len(packed.data) <= attention.most_bytes(65, 66)


def test_no_attention_takes_more_than_promised() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 1), (65, 66), (257, 257)):
        levels = (
            rng.integers(0, 3, (rows, columns)) / 2
        )  # the worst case: three values, equally frequent, without order
        for planted in (levels**2, rng.random((rows, columns)) ** 2):
            assert len(pack_attention(planted).data) <= attention.most_bytes(rows, columns)


@pytest.mark.parametrize("value", [np.nan, -0.1, np.inf])
def test_damaged_attention_is_refused(value: float) -> None:
    planted = weights("noise")
    planted[2, 2] = value
    with pytest.raises(ValueError, match="negative or not finite"):
        pack_attention(planted)


def test_eight_pictures_of_three_small_models_surely_fit() -> None:
    """ViT-S/16 at 224 pixels: 13 layers of 256 patches and CLS, in the page's base64."""
    extent = Extent(points=257, columns=257, layers=13, attention_layers=12, pixels=224 * 224)
    assert 8 * 3 * extent.most_bytes() < 17.5e6  # the rest of a page of three models is about 2 MB
    assert most_pictures([extent] * 3, 18) == 8
    by_hand = 13 * (0.76 * 257 * 256 / 2 + 400) + 12 * (0.22 * 257 * 257 + 4 * 257 + 400) + 224 * 224 / 2
    assert extent.most_bytes() == pytest.approx(by_hand * 4 / 3, rel=1e-4)
