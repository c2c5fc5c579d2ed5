"""The numbers of `discovery` as a measurement gives them, on paintings whose every answer follows by hand."""

import pandas as pd
import pytest
from scipy.stats import binomtest

from diffusionlens import measure
from tests.analysis.discovery.planted_attention import SIDE, Box, Painting, Paintings, colour_model

# Three kinds of patches whose keys have a cosine of -0.49 with each other. CLS asks the first head for red, the second for blue.
RED, GREEN, BLUE = (1.0, -0.6, -0.6), (-0.6, 1.0, -0.6), (-0.6, -0.6, 1.0)
SMALL, MIDDLE = (1, 1, 3, 3), (3, 4, 7, 7)
EVERY_BOX = tuple(
    (top, left, bottom, right)
    for top in range(SIDE)
    for left in range(SIDE)
    for bottom in range(top + 1, SIDE + 1)
    for right in range(left + 1, SIDE + 1)
)


def two_parts(*objects: Box, outlines: tuple[Box, ...]) -> Painting:
    """4 red and 12 green patches on 48 blue ones. LOST starts at a patch with the fewest like it: red. The second eigenvector of
    TokenCut is largest on green: for kinds of n patches with weak links it is 1 / (64 - m n), and m = 4.52 makes it 0.02 for
    red, 0.10 for green and -0.01 for blue."""
    return Painting(BLUE, {SMALL: RED, MIDDLE: GREEN}, objects, outlines=outlines)


LIT, DARK = (1.0, -0.2, 1.0), (-1.0, 0.2, -1.0)
PAINTINGS = {
    # 6 patches of one kind: both find them. Of the 6 that share the attention, the last 4 hold more than 0.6 of it.
    "both": Painting(DARK, {(2, 3, 5, 5): LIT}, [(2, 3, 5, 5)], outlines=[(2, 3, 5, 5)]),
    # The first head's mask: 3 of the 4 red patches.
    "lost only": two_parts(SMALL, outlines=(SMALL,)),
    # The second head's mask: the last 29 of 48 blue patches, the lowest row among them.
    "lost only again": two_parts((0, 7, 1, 8), SMALL, outlines=((7, 0, 8, 8),)),
    # No head outlines the green patches: (3/4 + 0) / 2 over the two classes.
    "tokencut only": two_parts(MIDDLE, outlines=(SMALL, MIDDLE)),
    # A cosine of 0.1: above 0, so that LOST takes all, and below TokenCut's 0.2.
    "lost takes all": Painting((0.1, 1.0, 0.0), {SMALL: (1.0, 0.0, 0.0)}, [SMALL]),
    "large": Painting(DARK, {SMALL: LIT}, [(1, 0, 8, 8)]),
    # One colour, and every box there is annotated: TokenCut's arbitrary one would meet one of them.
    "uncut": Painting(LIT, objects=EVERY_BOX),
    "found a crowd": Painting(DARK, {SMALL: LIT}, [(5, 5, 8, 8)], crowds=[SMALL]),
    "no object": Painting(DARK, {SMALL: LIT}, crowds=[SMALL]),
}
# corloc_lost, corloc_tokencut, corloc_whole, lost_whole, uncut
HITS = {
    "both": (1, 1, 0, 0, 0),
    "lost only": (1, 0, 0, 0, 0),
    "lost only again": (1, 0, 0, 0, 0),
    "tokencut only": (0, 1, 0, 0, 0),
    "lost takes all": (0, 1, 0, 1, 0),
    "large": (0, 0, 1, 0, 0),
    "uncut": (1, 0, 1, 1, 1),
    "found a crowd": (0, 0, 0, 0, 0),
}
METRICS = ("corloc_lost", "corloc_tokencut", "corloc_whole", "lost_whole", "uncut")
JACCARD = {"both": 4 / 6, "lost only": 3 / 4, "lost only again": 8 / 29, "tokencut only": 3 / 8}


def measured(*options: str, batch_size: int = 4) -> tuple[pd.DataFrame, pd.DataFrame]:
    found = measure(
        colour_model(),
        Paintings(PAINTINGS),
        analyses="discovery",
        fit="squash",
        batch_size=batch_size,
        options=options,
    )
    assert found is not None
    return found.measurement.results.set_index("metric"), found.measurement.per_image


def test_every_picture_is_what_its_painting_says() -> None:
    _, pictures = measured()
    found = pictures.dropna(subset="value").pivot(index="name", columns="metric", values="value")
    for name, hits in HITS.items():
        assert tuple(found.loc[name, list(METRICS)]) == tuple(100 * hit for hit in hits), name
    assert "no object" not in found.index  # a crowd is no object, and outlines nothing
    assert found["jaccard_attention"].dropna().to_dict() == pytest.approx(
        {name: 100 * value for name, value in JACCARD.items()}, rel=1e-5
    )


def test_the_table_has_their_means_at_the_last_layer_with_wilsons_intervals() -> None:
    results, _ = measured()
    assert list(results.index) == [*METRICS, "jaccard_attention"]
    assert (results["layer"] == 2).all()
    for place, metric in enumerate(METRICS):
        hits = sum(row[place] for row in HITS.values())
        interval = binomtest(hits, len(HITS)).proportion_ci(method="wilson")
        row = results.loc[metric]
        assert row["n"] == len(HITS)
        assert row["value"] == pytest.approx(100 * hits / len(HITS))
        assert (row["low"], row["high"]) == pytest.approx((100 * interval.low, 100 * interval.high))
    assert results.loc["jaccard_attention", "n"] == len(JACCARD)
    assert results.loc["jaccard_attention", "value"] == pytest.approx(
        100 * sum(JACCARD.values()) / len(JACCARD), rel=1e-5
    )


def test_values_instead_of_keys_are_taken_when_asked_for() -> None:
    """All patches have the same value."""
    results, _ = measured("discovery.features=values")
    assert (results.loc[["uncut", "lost_whole"], "value"] == 100).all()
    assert results.loc["corloc_tokencut", "value"] == 0
    assert results.loc["jaccard_attention", "value"] == pytest.approx(
        100 * sum(JACCARD.values()) / len(JACCARD), rel=1e-5
    )
