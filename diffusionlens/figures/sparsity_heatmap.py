"""Effective support of every layer and head, one panel per model on one colour scale."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from diffusionlens.figures.style import new_figure, short_names

_WIDEST = 11.0  # inches; more panels go below


def support_by_head(results: pd.DataFrame, models: Sequence[str], metric: str = "effective_support") -> Figure | None:
    """Layer x head heat map of `metric` over patch queries and all keys; None without sparsity."""
    rows = results[
        (results["analysis"] == "sparsity")
        & (results["metric"] == metric)
        & (results["token"] == "patch>all")
        & (results["head"] != "mean")
    ]
    present = [model for model in models if rows[rows["model"] == model]["value"].notna().any()]
    if not present:
        return None
    shapes = [rows[rows["model"] == model].assign(head=lambda own: own["head"].astype(int)) for model in present]
    tables = [own.pivot(index="layer", columns="head", values="value") for own in shapes]
    panel = 0.34 * max(table.shape[1] for table in tables) + 1.0
    columns = min(len(present), max(1, int(_WIDEST // panel)))
    lines = -(-len(present) // columns)
    figure = new_figure(panel * columns + 1.1, _height(tables) * lines + 0.2)
    grid = figure.subplots(lines, columns, squeeze=False).flat
    low, high = float(rows["value"].min()), float(rows["value"].max())
    names = short_names(present, int(panel * 11))
    for place, (axes, model, table) in enumerate(zip(grid, present, tables, strict=False)):
        sns.heatmap(table, ax=axes, vmin=low, vmax=high, cmap="viridis", cbar=False)
        axes.set_title(names[model])
        axes.set_xlabel("head")
        axes.set_ylabel("layer" if place % columns == 0 else "")
        axes.tick_params(length=0)
        axes.tick_params(axis="y", rotation=0)
        axes.invert_yaxis()
    panels = list(figure.axes)
    for axes in panels[len(present) :]:
        axes.set_axis_off()
    bar = figure.colorbar(
        panels[0].collections[0], ax=panels, label="effective support", aspect=30 if _height(tables) * lines > 3 else 12
    )
    bar.outline.set_visible(False)
    return figure


def _height(tables: Sequence[pd.DataFrame]) -> float:
    """Of one line of panels in inches; the colour bar's label needs its place even beside a single layer."""
    return max(0.24 * max(len(table) for table in tables) + 1.0, 1.8)
