"""Patch norms of every layer as a stack of histograms, with the outlier rules' thresholds."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter

from diffusionlens.figures.style import SOFT, model_looks, new_figure
from diffusionlens.material import ModelMaterial

_OVERLAP = 1.5


def norm_ridges(material: Sequence[ModelMaterial]) -> Figure | None:
    """One column per model, the first layer at the bottom; None without norms."""
    present = [entry for entry in material if entry.norm_histograms]
    if not present:
        return None
    tallest = max(len(entry.norm_histograms) for entry in present)
    figure = new_figure(3.2 * len(present) + 0.4, 0.3 * tallest + 1.4)
    grid = figure.subplots(1, len(present), squeeze=False)[0]
    looks = model_looks([entry.model for entry in material])
    for axes, entry in zip(grid, present, strict=True):
        _ridge(axes, entry, looks[entry.model].color)
    grid[0].set_ylabel("layer")
    return figure


def _ridge(axes: Axes, entry: ModelMaterial, color: str) -> None:
    layers = sorted(entry.norm_histograms)
    for height, layer in enumerate(layers):
        histogram = entry.norm_histograms[layer]
        centres = np.sqrt(histogram.edges[1:] * histogram.edges[:-1])
        density = histogram.counts / max(histogram.counts.max(), 1) * _OVERLAP
        order = len(layers) - height
        axes.fill_between(centres, height, height + density, color=color, alpha=0.55, linewidth=0, zorder=order)
        axes.plot(centres, height + density, color=color, linewidth=0.8, zorder=order)
        mad, valley = histogram.thresholds.get("mad", np.inf), histogram.thresholds.get("valley", np.inf)
        axes.plot([mad, mad], [height, height + 0.7], color=SOFT, linewidth=1, zorder=order + 0.5)
        if np.isfinite(valley):
            axes.plot(valley, height + 0.25, marker="v", color="#D55E00", markersize=5, zorder=order + 0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter("")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("patch norm (log scale)")
    axes.set_title(entry.model)
    axes.grid(axis="x", visible=False)
