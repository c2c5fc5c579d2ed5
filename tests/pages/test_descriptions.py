"""What stands beside a figure is what its rows say."""

import numpy as np
import pandas as pd

from diffusionlens.material import ModelMaterial, NormHistogram, SamplePicture
from diffusionlens.pages.descriptions import basis_of, count_of, gist_of
from diffusionlens.results import Row, to_frame


def results() -> pd.DataFrame:
    rows = [
        Row("pib", "pib", value, 29, layer, token="cls", low=1, high=99)
        for layer, value in enumerate([55.0, 90.0, 70.0])
    ]
    rows += [
        Row("similarity", "effective_rank", 100.0, 4096, 2),
        Row("similarity", "lds", 0.5, 48, 2, low=0.4, high=0.6),
    ]
    return to_frame(rows, "m", "voc")


def picture(boxes: int) -> SamplePicture:
    return SamplePicture("p", np.zeros((8, 8, 3), np.uint8), np.zeros((boxes, 4), np.float32))


def test_a_figure_counts_its_own_pictures_and_not_those_of_the_run() -> None:
    assert basis_of("pib_by_layer", results(), []) == "29 pictures of voc."
    assert basis_of("similarity_by_layer", results(), []) == "48 pictures of voc."  # not the tokens behind the rank


def test_counts() -> None:
    one = to_frame([Row("pib", "pib", 1.0, 1, 0, low=0, high=2)], "m", "d")
    assert count_of(one) == "1 picture"
    assert count_of(pd.concat([one, results()])) == "1 to 48 pictures"


def test_pictures_and_tokens_are_counted() -> None:
    pictures = [picture(1)] * 3 + [picture(0)] * 4
    histogram = NormHistogram(np.geomspace(1, 100, 5), np.array([0.0, 1, 7, 2]), {})
    material = [ModelMaterial("m", pictures, norm_histograms={2: histogram})]
    assert basis_of("pib_overlay", results(), material).startswith("3 pictures of voc")
    assert "5 pictures shown of the 7" in basis_of("pca_maps", results(), material)
    assert basis_of("norms", results(), material) == "10 patch tokens of voc in every histogram."
    assert gist_of("norms", results(), ["m"], material) == "m: most norms near 18 in layer 2."


def test_the_gist_has_start_end_and_summit() -> None:
    text = gist_of("pib_by_layer", results(), ["m"], [])
    assert text == "Point-in-Box: m 55.0 in layer 0, 70.0 in layer 2, highest 90.0 in layer 1."
