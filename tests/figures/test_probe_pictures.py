"""Pictures of what heads say: one palette, one depth scale, ignored pixels hatched."""

import numpy as np
from matplotlib.colors import Normalize

from diffusionlens.figures.probe_pictures import class_colours, depth_colours, depth_pictures, segmentation_pictures
from diffusionlens.figures.style import look
from diffusionlens.material import ModelMaterial, ProbedPicture

CLASSES = ("background", *(f"class {number}" for number in range(1, 21)))


def probed(model: str, *, depth: bool, pictures: int = 3) -> ModelMaterial:
    rng = np.random.default_rng(0)
    shown = []
    for place in range(pictures):
        size = (40, 60 - 10 * place)
        maps = [rng.uniform(1, 5, size) if depth else rng.integers(0, 21, size) for _ in range(3)]
        maps[0][:5] = np.nan if depth else 255
        image = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
        predicted = {"patch": maps[1], "cls+patch": maps[2]}
        shown.append(ProbedPicture(f"p{place}", 12, image, maps[0], predicted, () if depth else CLASSES))
    return ModelMaterial(model, [], probed=shown)


def test_the_palette_is_vocs() -> None:
    expected = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128)}
    labels = np.array([list(expected)])
    assert [tuple(colour) for colour in class_colours(labels)[0].tolist()] == list(expected.values())


def test_ignored_and_unmeasured_pixels_are_hatched_in_grey() -> None:
    labels = np.zeros((16, 16), np.int64)
    labels[:8] = 255
    colours = class_colours(labels)
    assert (colours[:8] == colours[:8, :, :1]).all()
    assert len(np.unique(colours[:8])) == 2
    assert (colours[8:] == 0).all()
    metres = np.where(labels == 255, np.nan, 2.0)
    colours = depth_colours(metres, Normalize(0, 4))
    assert (colours[:8] == colours[:8, :, :1]).all()
    assert (colours[8:] == colours[8, 0]).all()
    assert colours[8, 0].tolist() == [33, 145, 140]  # the middle of viridis, as published


def test_every_model_and_kind_has_a_column() -> None:
    for draw, depth in ((segmentation_pictures, False), (depth_pictures, True)):
        material = [probed(name, depth=depth) for name in ("one", "other")]
        with look():
            figure = draw(material)
            assert figure is not None
            titles = [axes.get_title(loc="center") for axes in figure.axes[:6]]
            assert [title.replace("\n", " ") for title in titles[2:]] == [
                "one patch", "one cls+patch", "other patch", "other cls+patch"
            ]  # fmt: skip
            assert len(figure.axes) == 18 + depth  # cells, and the colour bar
            assert draw([probed("one", depth=not depth)]) is None
            assert draw([ModelMaterial("one", [])]) is None
        shown = figure.axes[1].images[0].get_array()
        measured = np.concatenate([picture.truth.ravel() for picture in material[0].probed])
        scale = Normalize(0, np.nanpercentile(measured, 95), clip=True)
        labels = material[0].probed[0].truth
        np.testing.assert_array_equal(shown, depth_colours(labels, scale) if depth else class_colours(labels))
