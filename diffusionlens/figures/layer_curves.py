"""A metric by layer, one line per model, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffusionlens.figures.style import SOFT, model_looks, new_figure


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
        return chosen[chosen["head"].isin(["", "mean"])].sort_values("layer", kind="stable")


def draw_curves(axes: Axes, rows: pd.DataFrame, models: Sequence[str]) -> None:
    """Draws one line per model with a band for the interval; a single layer is a marker with a bar."""
    for model, look in model_looks(models).items():
        own = rows[rows["model"] == model]
        if own.empty:
            continue
        layers, values = own["layer"].astype(int).to_numpy(), own["value"].to_numpy()
        low, high = own["low"].fillna(own["value"]).to_numpy(), own["high"].fillna(own["value"]).to_numpy()
        if len(layers) == 1:
            axes.errorbar(layers, values, [values - low, high - values], fmt=look.marker, color=look.color, label=model)
            continue
        axes.plot(layers, values, color=look.color, linestyle=look.linestyle, marker=look.marker, label=model)
        axes.fill_between(layers, low, high, color=look.color, alpha=0.16, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")


def pib_by_layer(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """Point-in-Box by layer, with chance and the centre patch as predictor; None without PiB."""
    panel = Panel("Point-in-Box by layer", "pictures hit (%)", "pib", "pib")
    rows = panel.rows(results)
    if rows.empty:
        return None
    figure = new_figure(5.4, 3.6)
    axes = figure.subplots()
    draw_curves(axes, rows, models)
    looks = model_looks(models)
    for metric, name, style in (("pib_chance", "chance", ":"), ("pib_center", "centre patch", "-.")):
        reference = Panel("", "", "pib", metric).rows(results)
        drawn: list[float] = []
        for model in models:
            own = reference[reference["model"] == model]
            level = float(own["value"].iloc[0]) if len(own) else float("nan")
            if any(abs(level - other) < 0.05 for other in drawn) or level != level:
                continue  # models on the same grid share the line
            drawn.append(level)
            color = SOFT if not drawn[1:] else looks[model].color
            axes.axhline(level, color=color, linestyle=style, linewidth=1.2, zorder=1)
            axes.annotate(
                name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                fontsize=8, color=SOFT, va="center", annotation_clip=False,
            )  # fmt: skip
    axes.set_ylabel(panel.label)
    axes.set_ylim(0, 100)
    axes.set_title(panel.title)
    axes.legend(loc="best")
    return figure


def small_multiples(
    results: pd.DataFrame, models: Sequence[str], panels: Sequence[Panel], columns: int = 3
) -> Figure | None:
    """A grid of panels; panels without rows are left out, and None is returned when none is left."""
    present = [panel for panel in panels if not panel.rows(results).empty]
    if not present:
        return None
    columns = min(columns, len(present))
    rows = -(-len(present) // columns)
    figure = new_figure(3.0 * columns + 0.4, 2.35 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, present, strict=False):
        draw_curves(axes, panel.rows(results), models)
        axes.set_title(panel.title)
        axes.set_ylabel(panel.label)
    for axes in list(grid.flat)[len(present) :]:
        axes.set_axis_off()
    handles, labels = grid.flat[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4))
    return figure


SIMILARITY_PANELS = (
    Panel("CLS to patches", "mean cosine", "similarity", "cls_patch_cos"),
    Panel("Patch to patch", "mean cosine", "similarity", "patch_patch_cos"),
    Panel("Near minus far (LDS)", "cosine difference", "similarity", "lds"),
    Panel("Inside minus across regions (SRSS)", "cosine difference", "similarity", "srss"),
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
