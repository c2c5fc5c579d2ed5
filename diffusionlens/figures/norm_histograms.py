"""Patch norms of every layer as a stack of histograms, with the outlier rules' thresholds."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from diffusionlens.figures.style import SOFT, model_looks, new_figure, short_names
from diffusionlens.material import ModelMaterial

_OVERLAP = 1.5
_NAME = 34  # characters that fit above a column


def norm_ridges(material: Sequence[ModelMaterial]) -> Figure | None:
    """One column per model on one axis of norms, the first layer at the bottom; None without norms."""
    present = [entry for entry in material if entry.norm_histograms]
    if not present:
        return None
    tallest = max(len(entry.norm_histograms) for entry in present)
    figure = new_figure(3.2 * len(present) + 0.4, 0.3 * tallest + 1.4)
    grid = figure.subplots(1, len(present), squeeze=False, sharex=True)[0]
    looks = model_looks([entry.model for entry in material])
    names = short_names([entry.model for entry in present], _NAME)
    for axes, entry in zip(grid, present, strict=True):
        _ridge(axes, entry, looks[entry.model].color)
        axes.set_title(names[entry.model])
    _norm_axis(grid[0])
    for axes, entry in zip(grid, present, strict=True):
        _fixed(axes, entry)
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
        if np.isfinite(mad):
            axes.plot([mad, mad], [height, height + 0.7], color=SOFT, linewidth=1, zorder=order + 0.5)
        if np.isfinite(valley):  # in the colour of the text, which no model has
            ink = mpl.rcParams["text.color"]
            axes.plot(valley, height + 0.25, marker="v", color=ink, markersize=5, zorder=order + 0.5)
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("patch norm (log scale)")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", visible=False)


def _norm_axis(axes: Axes) -> None:
    """The axis that all columns share: no more ticks than can be read."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    subs = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.5 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda norm, _: f"{norm:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _fixed(axes: Axes, entry: ModelMaterial) -> None:
    """The fixed threshold as a dotted line, where norms come near it."""
    low, high = axes.get_xlim()
    for rule, threshold in entry.norm_histograms[min(entry.norm_histograms)].thresholds.items():
        if rule.startswith("fixed") and low < threshold < high:
            axes.axvline(threshold, color=SOFT, linestyle=":", linewidth=1.2, zorder=0)
