"""A metric by layer, one line per model, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffusionlens.figures.style import SOFT, legend_names, model_looks, new_figure, short_names


@dataclass(frozen=True)
class Panel:
    """What a panel shows: the rows of `analysis`, `metric` and, where given, `token` and head "mean"."""

    title: str
    label: str
    analysis: str
    metric: str
    token: str | None = None

    def rows(self, results: pd.DataFrame) -> pd.DataFrame:
        chosen = results[(results["analysis"] == self.analysis) & (results["metric"] == self.metric)]
        if self.token is not None:
            chosen = chosen[chosen["token"] == self.token]
        chosen = chosen[chosen["head"].isin(["", "mean"])].sort_values("layer", kind="stable")
        return chosen if chosen["value"].notna().any() else chosen.head(0)


def draw_curves(axes: Axes, rows: pd.DataFrame, models: Sequence[str], *, alone: bool | None = None) -> None:
    """Draws one line per model with a band for the interval; a single layer is a marker with a bar, models side by side.

    `alone`: whether the panel shows one layer only; says so of a panel that shares its axis with others of more layers.
    """
    names = legend_names(models)
    if alone is None:
        alone = rows["layer"].nunique() == 1
    looks = {model: look for model, look in model_looks(models).items() if (rows["model"] == model).any()}
    for place, (model, look) in enumerate(looks.items()):
        own = rows[rows["model"] == model]
        layers, values = own["layer"].astype(int).to_numpy(), own["value"].to_numpy()
        low, high = own["low"].fillna(own["value"]).to_numpy(), own["high"].fillna(own["value"]).to_numpy()
        if len(layers) == 1:
            aside = 0.2 * (place - (len(looks) - 1) / 2) if alone else 0.0
            bars = [np.fmax(values - low, 0), np.fmax(high - values, 0)]  # bars can't point inwards
            axes.errorbar(layers + aside, values, bars, fmt=look.marker, color=look.color, label=names[model])
            continue
        axes.plot(layers, values, color=look.color, linestyle=look.linestyle, marker=look.marker, label=names[model])
        axes.fill_between(layers, low, high, color=look.color, alpha=0.16, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if alone:
        layer = int(rows["layer"].iloc[0])
        axes.set_xticks([layer])
        axes.set_xlim(layer - 1, layer + 1)
    axes.set_xlabel("layer")


def pib_by_layer(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """Point-in-Box by layer, with chance and the centre patch as predictor; None without PiB."""
    panel = Panel("Point-in-Box by layer", "pictures hit (%)", "pib", "pib")
    rows = panel.rows(results)
    if rows.empty:
        return None
    figure = new_figure(5.6, 3.8)
    axes = figure.subplots()
    draw_curves(axes, rows, models)
    looks = model_looks(models)
    levels: list[tuple[float, str]] = []
    names = short_names(models, 14)
    for metric, name, style in (("pib_chance", "chance", ":"), ("pib_center", "centre patch", "-.")):
        reference = Panel("", "", "pib", metric).rows(results)
        drawn: dict[str, float] = {}  # models on the same grid share the line
        for model in models:
            own = reference[reference["model"] == model]
            level = float(own["value"].iloc[0]) if len(own) else float("nan")
            if level == level and all(abs(level - other) >= 0.05 for other in drawn.values()):
                drawn[model] = level
        for model, level in drawn.items():
            alone = len(drawn) == 1
            color = SOFT if alone else looks[model].color
            axes.axhline(level, color=color, linestyle=style, linewidth=1.2, zorder=1)
            levels.append((level, name if alone else f"{name}, {names[model]}"))
    _name_levels(axes, levels)
    axes.set_ylabel(panel.label)
    axes.set_ylim(-3, 103)  # markers at 0 and at 100 are whole
    axes.set_yticks(range(0, 101, 20))
    axes.set_title(panel.title)
    name_models(figure, axes)
    return figure


def _name_levels(axes: Axes, levels: list[tuple[float, str]], gap: float = 5.0) -> None:
    """Names lines at their right end, moved apart where they would be written over each other."""
    below = -gap
    for level, name in sorted(levels):
        below = max(level, below + gap)
        axes.annotate(
            name, (1.0, below), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
            fontsize=8, color=SOFT, va="center", annotation_clip=False,
        )  # fmt: skip


def small_multiples(
    results: pd.DataFrame, models: Sequence[str], panels: Sequence[Panel], columns: int = 3, *, zero: bool = False
) -> Figure | None:
    """A grid of panels; panels without rows are left out, and None is returned when none is left.

    Args:
        zero: each panel has a line at 0, for values that are differences.
    """
    present = [panel for panel in panels if not panel.rows(results).empty]
    if not present:
        return None
    columns = min(columns, len(present))
    rows = -(-len(present) // columns)
    figure = new_figure(3.0 * columns + 0.4, 2.35 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, present, strict=False):
        if zero:
            axes.axhline(0, color=SOFT, linestyle=":", linewidth=1.2, zorder=1)
        draw_curves(axes, panel.rows(results), models)
        axes.set_title(panel.title)
        axes.set_ylabel(panel.label)
    for axes in list(grid.flat)[len(present) :]:
        axes.set_axis_off()
    name_models(figure, *grid.flat[: len(present)])
    return figure


def name_models(figure: Figure, *panels: Axes) -> None:
    """One legend above all panels, with every model that any of them draws."""
    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    longest = max(map(len, found), default=0)
    columns = max(1, min(len(found), 4, int(figure.get_size_inches()[0] * 13 // (longest + 8))))
    figure.legend(list(found.values()), list(found), loc="outside upper left", ncols=columns)


SIMILARITY_PANELS = (
    Panel("CLS to patches", "mean cosine", "similarity", "cls_patch_cos"),
    Panel("Patch to patch", "mean cosine", "similarity", "patch_patch_cos"),
    Panel("Near minus far (LDS)", "cosine difference", "similarity", "lds"),
    Panel("Inside minus across (SRSS)", "cosine difference", "similarity", "srss"),
    Panel("Spread of tokens (RMSC)", "distance", "similarity", "rmsc"),
    Panel("Effective rank", "dimensions", "similarity", "effective_rank"),
)

SPARSITY_PANELS = (
    Panel("Tokens attended, patch queries", "weights > 0", "sparsity", "support", "patch>all"),
    Panel("Effective support, patch queries", "exp(entropy)", "sparsity", "effective_support", "patch>all"),
    Panel("Effective support, CLS query", "exp(entropy)", "sparsity", "effective_support", "cls>all"),
    Panel("Weight of patches on CLS", "share", "sparsity", "cls_weight", "patch>cls"),
    Panel("Mean attention distance", "pixels", "sparsity", "mean_distance", "patch>patch"),
    Panel("Background to object", "share of weight", "sparsity", "background_to_object", "patch>patch"),
)
