"""Spread of an exchanged object by layer and distance, one panel per model on one colour scale."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from diffusionlens.figures.style import new_figure, short_names

_RINGS = ("ring 1", "ring 2", "ring 3-4", "ring 5+")
_PANEL = 2.6  # inches


def spread_by_ring(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """Layer x ring heat map of `spread`; None without it."""
    rows = results[(results["metric"] == "spread") & results["token"].isin(_RINGS) & results["value"].notna()]
    present = [model for model in models if (rows["model"] == model).any()]
    if not present:
        return None
    reached = [ring for ring in _RINGS if (rows["token"] == ring).any()]  # small pictures have no far patches
    tables = [
        rows[rows["model"] == model].pivot(index="layer", columns="token", values="value").reindex(columns=reached)
        for model in present
    ]
    columns = min(len(present), 4)
    lines = -(-len(present) // columns)
    height = 0.24 * max(len(table) for table in tables) + 1.1
    figure = new_figure(_PANEL * columns + 1.0, height * lines + 0.2)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    low, high = 0.0, max(float(rows["value"].max()), 1e-6)
    names = short_names(present, 26)
    for place, (axes, model, table) in enumerate(zip(grid, present, tables, strict=False)):
        sns.heatmap(table.astype(float), ax=axes, vmin=low, vmax=high, cmap="viridis", cbar=False)
        axes.set_title(names[model])
        axes.set_xticklabels([ring.removeprefix("ring ") for ring in reached], rotation=0)
        axes.set_xlabel("patches from the object")
        axes.set_ylabel("layer" if place % columns == 0 else "")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.tick_params(axis="y", rotation=0)
        axes.invert_yaxis()
    for axes in grid[len(present) :]:
        axes.set_axis_off()
    bar = figure.colorbar(grid[0].collections[0], ax=grid, label="spread", aspect=20)
    bar.outline.set_visible(False)
    return figure
