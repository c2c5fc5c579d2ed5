"""Tick labels are numbers as they are: no offset, no power of ten in a corner, and no digits of rounding errors."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from diffusionlens.figures.layer_curves import SPARSITY_PANELS, pib_by_layer, small_multiples
from diffusionlens.figures.style import freeze_layout, look, new_figure
from diffusionlens.results import Row, to_frame


def ticks(figure: Figure) -> list[list[str]]:
    """The labels that every visible axis shows, after a drawing; fails where one has a text in its corner."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_offset_text().get_text() == ""
            low, high = sorted(axis.get_view_interval())
            places = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            found.append([label.get_text().replace("\u2212", "-") for at, label in places if low <= at <= high])
    return found


@pytest.mark.parametrize(
    "values",
    [
        (16.98, 16.98 + 3e-7),  # the supports of two models that attend to everything, in float32
        (16.98, 16.98),
        (16.98, 16.985),
        (196.99999, 197.0),
        (0.9999999, 1.0),
        (2e-6, 5e-6),
        (0.0, 3e-5),
        (0.0, 0.0),
        (-0.01, -0.0100001),
        (1234.5, 1234.56),
        (150_000.0, 900_000.0),
    ],
)
def test_labels_are_short_numbers_that_differ(values: tuple[float, float]) -> None:
    step = (values[1] - values[0]) / 4
    tables = [
        to_frame(
            [Row("sparsity", "support", value + layer * step, 10, layer, "mean", "patch>all") for layer in (1, 2, 3)],
            model,
            "data",
        )
        for model, value in zip("ab", values, strict=True)
    ]
    with look():
        figure = small_multiples(pd.concat(tables), ["a", "b"], SPARSITY_PANELS)
        assert figure is not None
        freeze_layout(figure)
        for labels in ticks(figure):
            assert len(labels) > 1
            assert len(set(labels)) == len(labels)
            assert len({float(label) for label in labels}) == len(labels)
            assert max(map(len, labels)) <= 10, labels


def test_curves_lie_inside_their_panel() -> None:
    """A widened axis still has all that is drawn in its middle; one with a real range is left as it is."""
    with look():
        figure = new_figure(3, 2)
        narrow, wide = figure.subplots(1, 2)
        narrow.plot([1, 2], [16.98, 16.98 + 1e-7])
        wide.plot([1, 2], [16.9, 17.1])
        before = wide.get_ylim()
        freeze_layout(figure)
        low, high = narrow.get_ylim()
        assert high - low == pytest.approx(16.98e-4, rel=1e-3)
        assert (low + high) / 2 == pytest.approx(16.98, abs=1e-6)
        assert wide.get_ylim() == before


def test_axes_with_limits_of_their_own_keep_them() -> None:
    rows = [Row("pib", "pib", 50.0, 10, layer, token="cls") for layer in (1, 2, 3)]
    with look():
        figure = pib_by_layer(to_frame(rows, "a", "data"), ["a"])
        assert figure is not None
        freeze_layout(figure)
        assert figure.axes[0].get_ylim() == (-3, 103)
