"""Names of models stay readable and apart in figures, whatever is in them."""

import numpy as np
import pandas as pd

from diffusionlens.figures.layer_curves import SIMILARITY_PANELS, small_multiples
from diffusionlens.figures.norm_histograms import norm_ridges
from diffusionlens.figures.picture_maps import overlay_places, shown_layers
from diffusionlens.figures.style import look, model_looks, short_names
from diffusionlens.material import ModelMaterial, NormHistogram, SamplePicture
from diffusionlens.results import Row, to_frame


def curves(model: str, values: list[float]) -> pd.DataFrame:
    return to_frame([Row("similarity", "lds", value, 9, layer) for layer, value in enumerate(values)], model, "d")


def test_short_names_are_short_and_stay_apart() -> None:
    names = ["vit_small_patch16_224.dino", "vit_small_patch16_224.mae", "a"]
    short = short_names(names, 12)
    assert short["a"] == "a"
    assert len(set(short.values())) == 3
    assert all(name[0] == text[0] and name[-1] == text[-1] for name, text in short.items())
    assert len(short_names(["x" * 40], 12)["x" * 40]) == 12
    close = ["a" * 20 + "1" + "b" * 20, "a" * 20 + "2" + "b" * 20]
    assert len(set(short_names(close, 12).values())) == 2


def test_every_model_is_in_the_legend_and_no_name_is_mathematics() -> None:
    models = ["_hidden", "a$b$", r"$\frac$"]
    with look():
        figure = small_multiples(pd.concat([curves(model, [0.1, 0.2]) for model in models]), models, SIMILARITY_PANELS)
        assert figure is not None
        figure.canvas.draw()
    texts = [text.get_text().strip("\u200b") for text in figure.legends[0].get_texts()]
    assert texts == models


def test_a_gap_is_a_gap_and_nothing_but_gaps_is_nothing() -> None:
    figure = small_multiples(curves("m", [0.1, np.nan, 0.3]), ["m"], SIMILARITY_PANELS)
    assert figure is not None
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [0.1, np.nan, 0.3])
    assert small_multiples(curves("m", [np.nan, np.nan]), ["m"], SIMILARITY_PANELS) is None


def test_models_of_a_single_layer_stand_side_by_side() -> None:
    figure = small_multiples(pd.concat([curves("a", [0.1]), curves("b", [0.1])]), ["a", "b"], SIMILARITY_PANELS)
    assert figure is not None
    first, second = (container.lines[0].get_xdata()[0] for container in figure.axes[0].containers)
    assert first < 0 < second
    assert list(figure.axes[0].get_xticks()) == [0]


def test_colours_are_lighter_on_a_dark_page() -> None:
    def light(color: str) -> float:
        return sum(int(color[place : place + 2], 16) for place in (1, 3, 5))

    with look():
        day = [style.color for style in model_looks(list("abcdef")).values()]
    with look(dark=True):
        night = [style.color for style in model_looks(list("abcdef")).values()]
    assert all(light(a) < light(b) for a, b in zip(day, night, strict=True))


def test_norms_of_all_models_share_their_axis_and_the_fixed_rule_is_drawn_where_it_matters() -> None:
    def entry(model: str, low: float, high: float) -> ModelMaterial:
        edges = np.geomspace(low, high, 11)
        return ModelMaterial(
            model, [], norm_histograms={0: NormHistogram(edges, np.ones(10), {"mad": high, "fixed=150": 150.0})}
        )

    def dotted(figure: object) -> list[int]:
        return [sum(line.get_linestyle() == ":" for line in axes.lines) for axes in figure.axes]  # type: ignore[attr-defined]

    near, far = norm_ridges([entry("a", 1, 10), entry("b", 10, 1000)]), norm_ridges([entry("a", 1, 10)])
    assert near is not None
    assert near.axes[0].get_xlim() == near.axes[1].get_xlim()
    assert (dotted(near), dotted(far)) == ([1, 1], [0])


def test_pictures_with_a_single_box_come_first() -> None:
    def picture(boxes: int) -> SamplePicture:
        return SamplePicture("p", np.zeros((4, 4, 3), np.uint8), np.zeros((boxes, 4), np.float32))

    assert overlay_places([picture(2), picture(0), picture(1), picture(3), picture(1)]) == [2, 4, 0, 3]


def test_many_models_show_fewer_layers() -> None:
    assert [shown_layers(range(13), models) for models in (2, 4, 5)] == [[0, 6, 12], [6, 12], [12]]


def test_many_models_look_different() -> None:
    names = [str(place) for place in range(36)]
    with look():
        looks = model_looks(names)
    assert len(set(looks.values())) == 36
    assert [one.color for one in list(looks.values())[:6]] == [one.color for one in list(looks.values())[6:12]]
