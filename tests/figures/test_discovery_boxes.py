"""The boxes that were proposed are drawn where they are."""

import numpy as np

from diffusionlens.figures.discovery_boxes import discovered
from diffusionlens.material import DiscoveredPicture, ModelMaterial
from diffusionlens.report.findings import findings
from diffusionlens.results import Row, to_frame


def test_annotated_and_proposed_boxes_are_drawn() -> None:
    boxes = [
        np.array([[2, 3, 20, 24]], np.float32),
        np.array([0, 0, 30, 30], np.float32),
        np.array([4, 4, 18, 22], np.float32),
    ]
    picture = DiscoveredPicture("a", np.zeros((32, 32, 3), np.uint8), boxes[0], boxes[1], boxes[2])
    figure = discovered([ModelMaterial("one", []), ModelMaterial("two", [], discovered=[picture])])
    assert figure is not None
    (axes,) = figure.axes
    drawn = {
        tuple(float(v) for v in (*patch.get_xy(), patch.get_width(), patch.get_height())) for patch in axes.patches
    }
    assert drawn == {(1.5, 2.5, 18, 21), (-0.5, -0.5, 30, 30), (5, 5, 11, 15)}
    assert discovered([ModelMaterial("one", [])]) is None


def test_the_sentence_names_the_whole_picture() -> None:
    rows = [
        Row("discovery", f"corloc_{way}", value, 160, 12, low=value - 8, high=value + 8)
        for way, value in (("lost", 50.0), ("tokencut", 61.0), ("whole", 50.0))
    ]
    (found,) = findings(to_frame(rows, "m", "d"), ["m"], [])
    assert "in 50.0 (42.0 to 58.0) % of 160 pictures by LOST" in found.text
    assert found.text.endswith("the whole picture as the box, in 50.0 (42.0 to 58.0) %.")
    assert "can't" not in found.text
