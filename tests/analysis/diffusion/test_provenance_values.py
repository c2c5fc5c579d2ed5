"""Provenance as a measurement gives it, against Integrated Gradients of a linear encoder worked out by hand in float64."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from diffusionlens import measure
from tests.analysis.diffusion.painted import (
    GRID,
    PATCH,
    SIZE,
    Painted,
    PaintedPictures,
    centre_in,
    colour_encoder,
    in_boxes,
    noise,
    tokens,
)

SHARE = 0.7
PICTURES = [
    Painted(noise(0, 0, 256), 0, [(8, 8, 14, 12), (20, 22, 30, 28)]),
    Painted(noise(1, 90, 256), 1, [(0, 16, 9, 24), (24, 2, 31, 9)]),
    Painted(noise(2, 0, 150), 0, [(12, 12, 20, 20)]),
]


def attributions(one: Painted, row: int, column: int) -> tuple[np.ndarray, float]:
    """|Attribution| of cos(patch, CLS) to the pixels [32,32], summed over channels; and what the signed ones lack to the change
    of the score, over that.

    A patch's token is its mean colour plus SHARE of the picture's; the score's gradient by it is (t - (t.z)z) / |token|, for the
    unit vectors z of the token and t of CLS. The path from the blurred picture is summed at 64 Gauss-Legendre points.
    """
    baseline = gaussian_filter(one.pixels, (SIZE / 16, SIZE / 16, 0), mode="mirror", truncate=3)
    target = one.pixels.mean((0, 1))
    target /= np.linalg.norm(target)
    points, weights = np.polynomial.legendre.leggauss(64)
    gradient = np.zeros(3)
    scores = []
    for place, weight in [*zip((1 + points) / 2, weights / 2, strict=True), (0, 0), (1, 0)]:
        token = tokens(baseline + place * (one.pixels - baseline), [SHARE])[row, column]
        length = np.linalg.norm(token)
        score = token @ target / length
        gradient += weight * (target - score * token / length) / length
        scores.append(score)
    own = np.zeros((SIZE, SIZE, 1))
    own[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = 1 / PATCH**2
    found = gradient * (own + SHARE / SIZE**2) * (one.pixels - baseline)
    change = scores[-1] - scores[-2]
    return np.abs(found).sum(-1), abs(found.sum() - change) / abs(change)


def regions(one: Painted, row: int, column: int) -> list[np.ndarray]:
    near = in_boxes([(max(column - 1, 0) * PATCH, max(row - 1, 0) * PATCH, (column + 2) * PATCH, (row + 2) * PATCH)])
    boxed = in_boxes(one.boxes) & ~near
    return [near, boxed, ~near & ~boxed]


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str, str], float]:
    """(picture, metric, token) -> value, over all patches of each kind."""
    found = measure(
        colour_encoder(SHARE),
        PaintedPictures(PICTURES),
        analyses="diffusion",
        layers="last",
        fit="squash",
        options=["diffusion.leakage=false", "diffusion.spread=false", f"diffusion.provenance_patches={GRID**2}"],
    )
    assert found is not None
    table, pictures = found.measurement.results, found.measurement.per_image
    values = {("all", metric, token): value for metric, token, value in table[["metric", "token", "value"]].values}
    return values | {
        (name, metric, token): value
        for name, metric, token, value in pictures[["name", "metric", "token", "value"]].values
    }


@pytest.mark.parametrize("kind", ["background", "object"])
def test_shares_are_those_of_the_path_from_the_blurred_picture(
    kind: str, measured: dict[tuple[str, str, str], float]
) -> None:
    means = []
    for place, one in enumerate(PICTURES):
        chosen = ~centre_in(one.boxes, PATCH) if kind == "background" else centre_in(one.boxes)
        rows = []
        for row, column in np.argwhere(chosen):
            pixels, gap = attributions(one, row, column)
            assert gap < 1e-6  # complete: the path and its ends are right
            where = regions(one, row, column)
            rows.append([[pixels[part].sum() / pixels.sum(), part.mean()] for part in where])
        means.append(np.mean(rows, 0))
        for (share, area), region in zip(means[-1], ("self", "object", "rest"), strict=True):
            assert measured[f"{place:03d}", f"provenance_{region}", kind] == pytest.approx(share, rel=1e-3)
            assert measured[f"{place:03d}", f"provenance_{region}_area", kind] == pytest.approx(area, rel=1e-5)
    for (share, area), region in zip(np.mean(means, 0), ("self", "object", "rest"), strict=True):
        assert measured["all", f"provenance_{region}", kind] == pytest.approx(share, rel=1e-3)
        assert measured["all", f"provenance_{region}_area", kind] == pytest.approx(area, rel=1e-5)
    assert measured["all", "provenance_gap", kind] < 1e-3
