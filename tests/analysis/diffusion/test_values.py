"""Spread and leakage as a measurement gives them, against the same computed again in float64 from the pixels."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.model_selection import StratifiedKFold

from diffusionlens import measure
from diffusionlens.analysis.diffusion.probe import STRENGTHS
from tests.analysis.diffusion.painted import (
    GRID,
    PATCH,
    Box,
    Painted,
    PaintedPictures,
    centre_in,
    colour_encoder,
    erased,
    noise,
    tokens,
)

MIXING = (0.4, 1.0)
RINGS = {"ring 1": (1, 1), "ring 2": (2, 2), "ring 3-4": (3, 4), "ring 5+": (5, 99), "all": (1, 99)}


def measured(pictures: Sequence[Painted], *options: str, stem: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    found = measure(
        colour_encoder(*MIXING, stem=stem),
        PaintedPictures(pictures),
        analyses="diffusion",
        fit="squash",
        options=["diffusion.provenance=none", *options],
    )
    assert found is not None
    return found.measurement.results, found.measurement.per_image


# --- spread ---


def painted_object(seed: int, label: int, colour: tuple[int, int, int], boxes: list[Box], aside: list[Box]) -> Painted:
    """The first box in one colour, on noise."""
    image = noise(seed)
    left, top, right, bottom = boxes[0]
    image[top:bottom, left:right] = colour
    return Painted(image, label, boxes, aside)


# Two pictures, so that each is the other's donor. A box of one colour stays so when it is scaled; its shorter side is at most 10
# pixels, so that the soft edge is its outermost pixel, half and half. What is larger is a crowd or difficult, and stays.
PAIR = (
    painted_object(0, 0, (250, 30, 20), [(8, 8, 18, 16), (25, 2, 30, 7)], [(0, 20, 16, 32)]),
    painted_object(1, 1, (20, 40, 240), [(4, 5, 12, 14)], [(30, 30, 32, 32), (14, 14, 30, 28)]),
)


def exchanged(own: Painted, donor: Painted) -> np.ndarray:
    left, top, right, bottom = own.boxes[0]
    result = erased(own.pixels, own.boxes[:1])
    share = np.full((bottom - top, right - left, 1), 0.5)
    share[1:-1, 1:-1] = 1
    colour = donor.pixels[donor.boxes[0][1], donor.boxes[0][0]]
    result[top:bottom, left:right] += share * (colour - result[top:bottom, left:right])
    return result


def response(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return 1 - (first * second).sum(-1) / length


def ring_of(one: Painted) -> np.ndarray:
    """Chebyshev distance in patches from those that the first box touches; 0 also where a centre is in any box."""
    left, top, right, bottom = one.boxes[0]
    rows, columns = np.mgrid[:GRID, :GRID]
    across = np.maximum(left // PATCH - columns, columns - (right - 1) // PATCH)
    down = np.maximum(top // PATCH - rows, rows - (bottom - 1) // PATCH)
    return np.where(centre_in(one.all_boxes), 0, np.maximum(np.maximum(across, down), 0))


@pytest.mark.parametrize("layer", [1, 2])
def test_spread_is_the_response_to_the_object_over_that_to_the_whole_picture(layer: int) -> None:
    results, pictures = measured(PAIR, "diffusion.leakage=false")
    spread = results[(results["metric"] == "spread") & (results["layer"] == layer)].set_index("token")
    each = pictures[(pictures["metric"] == "spread") & (pictures["layer"] == layer)].set_index(["name", "token"])[
        "value"
    ]
    for token, (low, high) in RINGS.items():
        parts = []
        for place, (own, donor) in enumerate((PAIR, PAIR[::-1])):
            ring = ring_of(own)
            chosen = (ring >= low) & (ring <= high)
            if not chosen.any():
                continue
            before = tokens(own.pixels, MIXING[:layer])
            parts.append(
                [
                    response(before, tokens(changed, MIXING[:layer]))[chosen].mean()
                    for changed in (exchanged(own, donor), donor.pixels)
                ]
            )
            assert each[f"{place:03d}", token] == pytest.approx(parts[-1][0] / parts[-1][1], rel=1e-3)
        above, below = np.sum(parts, 0)
        assert spread.loc[token, "n"] == len(parts)
        assert spread.loc[token, "value"] == pytest.approx(above / below, rel=1e-3)
        for metric, total in (("spread_object", above), ("spread_picture", below)):
            row = results[
                (results["metric"] == metric) & (results["layer"] == layer) & (results["token"] == token)
            ].iloc[0]
            assert row["n"] == len(parts)
            assert row["value"] == pytest.approx(total / len(parts), rel=1e-3)
        assert not 0.9 < below / len(parts) < 1.1  # a denominator of 1 would be another number


# --- leakage ---


def two_objects(index: int) -> Painted:
    """A box in a colour of its own, and another in that of the label, but for noise; backgrounds tell a little, too."""
    rng = np.random.default_rng((1, index))
    label = max(index % 5 - 2, 0)  # three of five have label 0, so that the strength of regularisation tells
    tint = np.eye(3)[label] - 1 / 3
    image = noise(index) + 8 * tint + 12 * rng.normal(size=3)
    x, y, u, v = (int(value) for value in rng.integers([0, 0, 18, 0], [6, 20, 22, 20]))
    boxes = [(x, y, x + 8, y + 10), (u, v, u + 10, v + 9)]
    colours = (128 + 30 * rng.normal(size=3), 128 + 150 * tint + 40 * rng.normal(size=3))
    for (left, top, right, bottom), colour in zip(boxes, colours, strict=True):
        image[top:bottom, left:right] = colour
    return Painted(image.clip(0, 255).astype(np.uint8), label, boxes)


COUNT = 35
STEM = 0.3  # mixed before the first block, so that leakage is not nothing in layer 0
OBJECTS = [two_objects(index) for index in range(COUNT)]


def coloured(index: int) -> Painted:
    """The whole picture in the colour of its label, but for some noise and a box."""
    label = index % 2
    image = noise(index) // 8 + np.array([[200, 20, 60], [20, 60, 200]], np.uint8)[label]
    image[10:20, 10:20] = 128
    return Painted(image.astype(np.uint8), label, [(10, 10, 20, 20)])


def test_no_picture_that_is_read_differently_is_not_certainty() -> None:
    """Every label is read from both sides: in layer 0 the tokens are the same, later only their readings are."""
    results, _ = measured([coloured(index) for index in range(20)], "diffusion.spread=false")
    table = results.set_index(["layer", "metric"])
    assert (
        table.loc[[(layer, f"leakage_{side}") for layer in range(3) for side in ("full", "erased")], "value"] == 100
    ).all()
    bound = 100 * 1.959964**2 / (20 + 1.959964**2)
    for metric in ("leakage", "leakage_depth"):
        for layer in range(3):
            row = table.loc[(layer, metric)]
            wanted = (0, 0, 0) if layer == 0 else (0, -bound, bound)
            assert (row["value"], row["low"], row["high"]) == pytest.approx(wanted, abs=1e-4)


def background(one: Painted, pixels: np.ndarray, layer: int) -> np.ndarray:
    """Mean token of the patches whose centre lies more than a patch outside of every box."""
    return tokens(pixels, (STEM, *MIXING[:layer]))[~centre_in(one.all_boxes, PATCH)].mean(0)


def read(sides: Sequence[np.ndarray], labels: np.ndarray, judges: Sequence[Sequence[int]]) -> np.ndarray:
    """Whose label is read, bool [judges, sides, pictures]: ridge regression by the normal equations; its strength is the best by
    the sides of a judge when each training picture is really left out in turn."""
    correct = np.zeros((len(judges), len(sides), len(labels)), bool)
    targets = np.eye(3)[labels]
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels):
        scaled = [(side - side[train].mean(0)) / side[train].std(0) for side in sides]
        strengths = STRENGTHS * len(train)
        errors = np.array([[left_out_error(s[train], targets[train], v) for v in strengths] for s in scaled])
        for row, judge in zip(correct, judges, strict=True):
            strength = strengths[errors[list(judge)].sum(0).argmin()]
            for own, side in zip(row, scaled, strict=True):
                own[test] = ridge(side[train], targets[train], side[test], strength).argmax(1) == labels[test]
    return correct


def ridge(features: np.ndarray, targets: np.ndarray, new: np.ndarray, strength: float) -> np.ndarray:
    centre, middle = features.mean(0), targets.mean(0)
    moved = features - centre
    weights = np.linalg.solve(moved.T @ moved + strength * np.eye(3), moved.T @ (targets - middle))
    return (new - centre) @ weights + middle


def left_out_error(features: np.ndarray, targets: np.ndarray, strength: float) -> float:
    places = np.arange(len(targets))
    guesses = [
        ridge(features[places != left], targets[places != left], features[[left]], strength)[0] for left in places
    ]
    return float(np.mean((np.array(guesses) - targets) ** 2))


def sides_of(layer: int, first_box_only: bool = False) -> list[np.ndarray]:
    filled = [erased(one.pixels, one.boxes[: 1 if first_box_only else None]) for one in OBJECTS]
    return [
        np.array([background(one, one.pixels, layer) for one in OBJECTS]),
        np.array([background(one, pixels, layer) for one, pixels in zip(OBJECTS, filled, strict=True)]),
    ]


def test_leakage_is_what_probes_read_with_the_objects_minus_without() -> None:
    results, pictures = measured(OBJECTS, "diffusion.spread=false", stem=STEM)
    labels = np.array([one.label for one in OBJECTS])
    told = np.zeros(3, int)
    drops = []
    for layer in range(3):
        (full, empty), *of_one_side = read(sides_of(layer), labels, ((0, 1), (0,), (1,)))
        half_erased = read(sides_of(layer, first_box_only=True), labels, ((0, 1),))
        told += [(other != [full, empty]).sum() for other in (*of_one_side, half_erased[0])]
        rows = results[results["layer"] == layer].set_index("metric")
        each = pictures[pictures["layer"] == layer].pivot(index="name", columns="metric", values="value")
        for metric, hits in (("leakage_full", full), ("leakage_erased", empty)):
            np.testing.assert_array_equal(each[metric], 100 * hits)
            interval = binomtest(int(hits.sum()), COUNT).proportion_ci(method="wilson")
            expected = [100 * value for value in (hits.mean(), interval.low, interval.high)]
            assert list(rows.loc[metric, ["value", "low", "high"]]) == pytest.approx(expected)
        drops.append(100 * (full.astype(float) - empty))
        np.testing.assert_array_equal(each["leakage"], drops[-1])
        np.testing.assert_array_equal(each["leakage_depth"], drops[-1] - drops[0])
        assert rows.loc["leakage", "value"] == pytest.approx(drops[-1].mean(), abs=1e-9)
        assert rows.loc["leakage_depth", "value"] == pytest.approx((drops[-1] - drops[0]).mean(), abs=1e-9)
        assert rows.loc["leakage_chance", "value"] == pytest.approx(60)
        assert (rows["n"] == COUNT).all()
    assert np.any(drops[0] != 0)
    # These pictures tell the rule from its likes: the strength chosen on one side alone, and only the first box erased.
    assert (told > 0).all(), told


def test_leakage_is_of_so_many_pictures_evenly_spaced() -> None:
    results, pictures = measured(OBJECTS, "diffusion.spread=false", "diffusion.leakage_pictures=28")
    spaced = [place * COUNT // 28 for place in range(28)]
    labels = [OBJECTS[place].label for place in spaced]
    counted = [f"{place:03d}" for place, label in zip(spaced, labels, strict=True) if labels.count(label) >= 5]
    each = pictures[(pictures["metric"] == "leakage") & (pictures["layer"] == 2)].dropna(subset="value")
    assert list(each["name"]) == counted
    assert (results["n"] == len(counted)).all()
