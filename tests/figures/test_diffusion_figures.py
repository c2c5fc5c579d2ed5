"""Figures of the interventions show the numbers and pictures that they are given."""

import numpy as np
import pandas as pd

from diffusionlens.figures.diffusion_maps import interventions, provenance_maps, spread_by_distance
from diffusionlens.figures.style import look
from diffusionlens.material import InterventionPicture, ModelMaterial, ProvenanceMap
from diffusionlens.results import Row, to_frame

BOXES = np.array([[4, 4, 12, 12]], np.float32)


def picture(value: int) -> np.ndarray:
    return np.full((16, 16, 3), value, np.uint8)


def material(model: str) -> ModelMaterial:
    changed = InterventionPicture("a", picture(1), BOXES, picture(2), None, np.eye(4, dtype=bool))
    pixels = np.arange(256, dtype=np.float32).reshape(16, 16)
    found = ProvenanceMap("a", 6, "background", (3, 0), (4, 4), picture(1), BOXES, pixels)
    return ModelMaterial(model, [], interventions=[changed], provenance_maps=[found])


def test_spread_is_drawn_by_layer_and_ring_on_one_scale() -> None:
    rows = [
        Row("diffusion", "spread", layer / 10 + ring, 9, layer, token=f"ring {name}")
        for layer in range(3)
        for ring, name in enumerate(("1", "2", "3-4"))
    ]
    table = pd.concat(
        [to_frame(rows, "m", "d"), to_frame([Row("diffusion", "spread", 7.0, 9, 0, token="ring 1")], "n", "d")]
    )
    with look():
        figure = spread_by_distance(table, ["m", "n", "none"])
    assert figure is not None
    first, second = figure.axes[:2]
    drawn = np.asarray(first.images[0].get_array())
    np.testing.assert_allclose(drawn[:, :3], [[0, 1, 2], [0.1, 1.1, 2.1], [0.2, 1.2, 2.2]])
    assert drawn.shape[1] == 3  # no patch is so far away as 5
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "2", "3-4"]
    assert np.isnan(np.asarray(second.images[0].get_array())[:, 1:]).all()  # of this model alone
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 7)
    assert spread_by_distance(table[:0], ["m"]) is None


def test_interventions_show_what_was_done() -> None:
    with look():
        figure = interventions([ModelMaterial("plain", []), material("m")])
    assert figure is not None
    shown = [[np.asarray(image.get_array()) for image in axes.images] for axes in figure.axes]
    assert (shown[0][0] == 1).all()
    assert (shown[2][0] == 2).all()
    assert shown[3] == []  # nothing was exchanged here
    bright = shown[1][0][..., 0] == 1  # the probed patches as they are, the others dimmed
    np.testing.assert_array_equal(bright, np.eye(4, dtype=bool).repeat(4, 0).repeat(4, 1))
    assert interventions([ModelMaterial("plain", [])]) is None


def test_provenance_has_a_column_for_each_model() -> None:
    with look():
        figure = provenance_maps([material("m"), material("n")])
    assert figure is not None
    assert len(figure.axes) == 3
    cells = np.arange(256).reshape(4, 4, 4, 4).sum((1, 3))  # |attribution| of every patch; shown as its square root
    np.testing.assert_allclose(np.asarray(figure.axes[1].images[0].get_array()) ** 2, cells, rtol=1e-6)
    marked = [patch for patch in figure.axes[2].patches if patch.get_width() == 4]
    assert {(patch.get_x(), patch.get_y()) for patch in marked} == {(-0.5, 11.5)}  # patch (3, 0) of 4 pixels
    assert provenance_maps([ModelMaterial("plain", [])]) is None
