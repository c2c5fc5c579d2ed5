"""Effective support of every layer and head, one panel per model on one colour scale."""

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from diffusionlens.figures.style import new_figure


def support_by_head(results: pd.DataFrame, models: Sequence[str], metric: str = "effective_support") -> Figure | None:
    """Layer x head heat map of `metric` over patch queries and all keys; None without sparsity."""
    rows = results[
        (results["analysis"] == "sparsity")
        & (results["metric"] == metric)
        & (results["token"] == "patch>all")
        & (results["head"] != "mean")
    ]
    present = [model for model in models if (rows["model"] == model).any()]
    if not present:
        return None
    shapes = [rows[rows["model"] == model].assign(head=lambda own: own["head"].astype(int)) for model in present]
    tables = [own.pivot(index="layer", columns="head", values="value") for own in shapes]
    heads = max(table.shape[1] for table in tables)
    figure = new_figure((0.34 * heads + 1.0) * len(present) + 1.1, 0.24 * max(len(t) for t in tables) + 1.2)
    grid = figure.subplots(1, len(present), squeeze=False)[0]
    low, high = float(rows["value"].min()), float(rows["value"].max())
    for place, (axes, model, table) in enumerate(zip(grid, present, tables, strict=True)):
        last = place == len(present) - 1
        sns.heatmap(
            table, ax=axes, vmin=low, vmax=high, cmap="viridis", cbar=last, cbar_kws={"label": "tokens attended"}
        )  # fmt: skip
        axes.set_title(model)
        axes.set_xlabel("head")
        axes.set_ylabel("layer" if place == 0 else "")
        axes.tick_params(length=0)
        axes.tick_params(axis="y", rotation=0)
        axes.invert_yaxis()
    return figure
