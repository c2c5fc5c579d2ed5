"""Curves of probes show every model's scores, also where each has its own last layer."""

import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from diffusionlens.figures.probe_curves import probe_by_layer
from diffusionlens.figures.style import look
from diffusionlens.results import Row, to_frame


def table(layers: dict[str, range]) -> pd.DataFrame:
    return pd.concat(
        to_frame(
            [
                Row(
                    "depth", "rmse", 1.0 + layer / 10, 9, layer, token=kind, low=0.9 + layer / 10, high=1.2 + layer / 10
                )
                for layer in own
                for kind in ("patch", "cls+patch")
            ],
            model,
            "d",
        )
        for model, own in layers.items()
    )


@pytest.mark.parametrize(
    "layers",
    [
        {"small": range(6, 7), "large": range(12, 13)},
        {"small": range(6, 7), "large": range(13)},
        {"small": range(7), "large": range(13)},
    ],
)
def test_every_score_lies_within_its_panel(layers: dict[str, range]) -> None:
    with look():
        figure = probe_by_layer(table(layers), list(layers))
        assert figure is not None
        figure.canvas.draw()
        for axes, own in zip(figure.axes, layers.values(), strict=True):
            left, right = axes.get_xlim()
            bottom, top = axes.get_ylim()
            bars = [held for held in axes.containers if isinstance(held, ErrorbarContainer)]
            lines = [held.lines[0] for held in bars] or [line for line in axes.lines if len(line.get_xdata()) > 1]
            assert len(lines) == 2
            for line in lines:
                assert list(line.get_ydata()) == [1.0 + layer / 10 for layer in own]
                assert all(left < x < right for x in line.get_xdata())
                assert all(bottom < y < top for y in line.get_ydata())
                assert [round(x) for x in line.get_xdata()] == list(own)
            assert {label.get_text() for label in axes.get_xticklabels()} & {str(own[-1])}
