"""Figures draw what the table says, for one model or several, one layer or many, with gaps."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from diffusionlens.figures.layer_curves import SIMILARITY_PANELS, pib_by_layer, small_multiples
from diffusionlens.figures.norm_histograms import norm_ridges
from diffusionlens.figures.picture_maps import pca_pictures, pib_overlay, shown_layers
from diffusionlens.figures.sparsity_heatmap import support_by_head
from diffusionlens.figures.style import freeze_layout, look, model_looks, new_figure, save_figure
from diffusionlens.material import ModelMaterial, NormHistogram, SamplePicture
from diffusionlens.results import Row, to_frame


def table(models: int, layers: int) -> pd.DataFrame:
    frames = []
    for model in range(models):
        rows = []
        for layer in range(layers):
            value = 50.0 + model + layer
            rows += [
                Row("pib", "pib", value, 9, layer, token="cls", low=value - 5, high=value + 5),
                Row("pib", "pib_chance", 30.0, 9, layer, token="cls"),
                Row("pib", "pib_center", 70.0, 9, layer, token="cls"),
                Row("similarity", "lds", value / 100, 9, layer, low=value / 100 - 0.1, high=value / 100 + 0.1),
                Row("similarity", "effective_rank", value, 9, layer),
            ]
            rows += [
                Row("sparsity", "effective_support", value * head, 9, layer, head, "patch>all") for head in range(3)
            ]
            rows.append(Row("sparsity", "effective_support", value, 9, layer, "mean", "patch>all"))
        frames.append(to_frame(rows, f"m{model}", "d"))
    return pd.concat(frames)


@pytest.mark.parametrize(("models", "layers"), [(1, 13), (4, 13), (2, 1)])
def test_pib_by_layer_draws_the_rows(models: int, layers: int) -> None:
    names = [f"m{place}" for place in range(models)]
    figure = pib_by_layer(table(models, layers), names)
    assert figure is not None
    axes = figure.axes[0]
    if layers > 1:
        drawn = {line.get_label(): line.get_ydata() for line in axes.lines if line.get_label() in names}
        for place, name in enumerate(names):
            np.testing.assert_array_equal(drawn[name], 50.0 + place + np.arange(layers))
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == (45, 50 + layers - 1 + 5)
    else:
        assert len(axes.containers) == models
    level = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() == "None"]
    assert [values[0] for values in level if values[0] == values[1]] == [30, 70]


def test_missing_metrics_leave_panels_out() -> None:
    figure = small_multiples(table(2, 5), ["m0", "m1"], SIMILARITY_PANELS)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes if axes.axison] == ["Near minus far (LDS)", "Effective rank"]
    empty = table(1, 2)[lambda frame: frame["analysis"] == "pib"]
    assert small_multiples(empty, ["m0"], SIMILARITY_PANELS) is None
    assert support_by_head(empty, ["m0"]) is None
    assert norm_ridges([ModelMaterial("m", [])]) is None
    assert pib_overlay([ModelMaterial("m", [])]) is None
    assert pca_pictures([ModelMaterial("m", [])]) is None


def test_heat_map_has_the_values_in_place() -> None:
    figure = support_by_head(table(1, 4), ["m0"])
    assert figure is not None
    shown = figure.axes[0].collections[0].get_array()
    np.testing.assert_array_equal(np.asarray(shown).reshape(4, 3), (50.0 + np.arange(4))[:, None] * np.arange(3))


def test_overlay_marks_the_best_patch_and_the_boxes() -> None:
    scores = np.zeros((1, 4, 4), np.float32)
    scores[0, 2, 1] = 1
    picture = SamplePicture("p", np.zeros((64, 64, 3), np.uint8), np.array([[8, 16, 40, 48]], np.float32))
    figure = pib_overlay([ModelMaterial("m", [picture], {3: scores})])
    assert figure is not None
    axes = figure.axes[1]
    ring = axes.lines[0]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (1.5 * 16 - 0.5, 2.5 * 16 - 0.5)
    frame = axes.patches[0]
    assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (7.5, 15.5, 32, 32)


def test_norm_histograms_show_the_valley_where_there_is_one() -> None:
    edges = np.geomspace(1, 100, 11)
    histograms = {0: NormHistogram(edges, np.arange(10.0), {"mad": 50.0, "valley": np.inf}),
                  1: NormHistogram(edges, np.arange(10.0), {"mad": 50.0, "valley": 30.0})}  # fmt: skip
    figure = norm_ridges([ModelMaterial("m", [], norm_histograms=histograms)])
    assert figure is not None
    triangles = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    assert [line.get_xdata()[0] for line in triangles] == [30.0]


def test_models_look_the_same_everywhere_and_differ_from_each_other() -> None:
    looks = model_looks(["a", "b", "c", "d"])
    assert len({(style.color, style.marker) for style in looks.values()}) == 4
    assert model_looks(["a", "b"])["b"] == looks["b"]


def test_dark_figures_are_dark() -> None:
    with look(dark=True):
        dark = new_figure(1, 1).get_facecolor()
    with look():
        light = new_figure(1, 1).get_facecolor()
    assert sum(dark[:3]) < 0.6 < 2.9 < sum(light[:3])


def test_layers_shown() -> None:
    assert shown_layers(range(13)) == [0, 6, 12]
    assert shown_layers([12]) == [12]


@pytest.mark.parametrize("draw", [pib_by_layer, support_by_head])
def test_a_frozen_figure_is_drawn_once_a_saving_and_alike_by_day_and_night(
    draw: Callable[..., Figure | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with look():
        day = draw(table(2, 5), ["m0", "m1"])
        assert day is not None
        freeze_layout(day)
        draws: list[Figure] = []
        plain = Figure.draw
        monkeypatch.setattr(Figure, "draw", lambda self, renderer: draws.append(self) or plain(self, renderer))
        save_figure(day, tmp_path, "day")
    assert draws == [day, day]  # PNG and PDF
    with look(dark=True):
        night = draw(table(2, 5), ["m0", "m1"])
        assert night is not None
        draws.clear()  # seaborn draws a figure to see whether its labels overlap
        before = [axes.get_position().bounds for axes in night.axes]
        freeze_layout(night, like=day)
        save_figure(night, tmp_path, "night")
    after = [axes.get_position().bounds for axes in night.axes]
    assert after == [axes.get_position().bounds for axes in day.axes]
    assert after != before
    assert draws == [night, night]
