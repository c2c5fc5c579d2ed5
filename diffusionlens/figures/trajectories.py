"""A metric over training: against the epoch, and by layer with one line a checkpoint."""

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diffusionlens.figures.layer_curves import Panel, name_models
from diffusionlens.figures.style import SOFT, legend_names, model_looks, new_figure

DENSE_PANELS = (
    Panel("Point-in-Box", "pictures hit (%)", "pib", "pib"),
    Panel("CLS to patches", "mean cosine", "similarity", "cls_patch_cos"),
    Panel("Near minus far (LDS)", "cosine difference", "similarity", "lds"),
    Panel("Inside minus across (SRSS)", "cosine difference", "similarity", "srss"),
    Panel("Patch to patch", "mean cosine", "similarity", "patch_patch_cos"),
    Panel("Effective rank", "dimensions", "similarity", "effective_rank"),
    Panel("Outlier tokens (MAD)", "share", "norms", "outlier_share", "mad"),
    Panel("Effective support, patches", "exp(entropy)", "sparsity", "effective_support", "patch>all"),
    Panel("Weight of patches on CLS", "share", "sparsity", "cls_weight", "patch>cls"),
    Panel("Leakage", "points", "diffusion", "leakage"),
    Panel("Spread", "share of a whole exchange", "diffusion", "spread", "all"),
)

TRACK_PANELS = (
    *DENSE_PANELS,
    Panel("CorLoc of LOST", "pictures (%)", "discovery", "corloc_lost"),
    Panel("CorLoc of TokenCut", "pictures (%)", "discovery", "corloc_tokencut"),
    Panel("Outline by attention", "Jaccard index (%)", "discovery", "jaccard_attention"),
)

LAYER_PANELS = (
    Panel("Point-in-Box", "pictures hit (%)", "pib", "pib"),
    Panel("CLS to patches", "mean cosine", "similarity", "cls_patch_cos"),
    Panel("Near minus far (LDS)", "cosine difference", "similarity", "lds"),
)


def last_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run's last measured layer, in the order of training."""
    if rows.empty:
        return rows
    last = rows.groupby("run", sort=False)["layer"].transform("max")
    return rows[rows["layer"] == last].sort_values("epoch", kind="stable")


def metric_by_epoch(
    results: pd.DataFrame, runs: Sequence[str], panels: Sequence[Panel] = TRACK_PANELS
) -> Figure | None:
    """Small multiples over the epochs, one line a run with its interval, at the last layer; None without any metric.

    Args:
        results: the tidy table with `run` and `epoch`.
    """
    present = [panel for panel in panels if not panel.rows(results).empty]
    if not present:
        return None
    columns = min(3, len(present))
    lines = -(-len(present) // columns)
    figure = new_figure(3.0 * columns + 0.4, 2.35 * lines + 0.4)
    grid = figure.subplots(lines, columns, squeeze=False)
    names = legend_names(runs)
    for axes, panel in zip(grid.flat, present, strict=False):
        rows = last_layer(panel.rows(results))
        for run, look in model_looks(runs).items():
            own = rows[rows["run"] == run]
            if own.empty:
                continue
            epochs, values = own["epoch"].to_numpy(), own["value"].to_numpy()
            low, high = own["low"].fillna(own["value"]).to_numpy(), own["high"].fillna(own["value"]).to_numpy()
            axes.plot(epochs, values, color=look.color, linestyle=look.linestyle, marker=look.marker, label=names[run])
            axes.fill_between(epochs, low, high, color=look.color, alpha=0.16, linewidth=0)
        if panel.metric == "pib":
            _draw_chance(axes, results, runs)
        axes.set_title(panel.title)
        axes.set_ylabel(panel.label)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    for axes in list(grid.flat)[len(present) :]:
        axes.set_axis_off()
    name_models(figure, *grid.flat[: len(present)])
    return figure


def _draw_chance(axes: Axes, results: pd.DataFrame, runs: Sequence[str]) -> None:
    chance = last_layer(Panel("", "", "pib", "pib_chance").rows(results))
    levels = {
        round(float(chance[chance["run"] == run]["value"].iloc[-1]), 1) for run in runs if run in set(chance["run"])
    }
    for level in levels:
        axes.axhline(level, color=SOFT, linestyle=":", linewidth=1.2, zorder=1)
    if levels:
        axes.annotate(
            "chance", (1.0, min(levels)), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points",
            fontsize=8, color=SOFT, ha="right", va="bottom",
        )  # fmt: skip


def layers_by_epoch(
    results: pd.DataFrame, runs: Sequence[str], panels: Sequence[Panel] = LAYER_PANELS
) -> Figure | None:
    """Every metric by layer, a line a checkpoint from pale (untrained) to strong (last); a column a run. None for one layer."""
    present = [panel for panel in panels if panel.rows(results)["layer"].nunique() > 1]
    if not present:
        return None
    figure = new_figure(3.1 * len(runs) + 1.0, 2.35 * len(present) + 0.3)
    grid = figure.subplots(len(present), len(runs), squeeze=False, sharey="row")
    looks = model_looks(runs)
    latest = float(results["epoch"].max())
    norm = Normalize(0.0, latest or 1.0)
    for line, panel in zip(grid, present, strict=True):
        rows = panel.rows(results)
        for axes, run in zip(line, runs, strict=True):
            colours = _shades(looks[run].color)
            for epoch, own in rows[rows["run"] == run].groupby("epoch"):
                first = epoch == rows["epoch"].min()
                axes.plot(
                    own["layer"].astype(int), own["value"], color=colours(norm(float(str(epoch)))), linewidth=1.4,
                    linestyle=":" if first else "-",
                )  # fmt: skip
            axes.set_title(f"{panel.title}, {run}" if len(runs) > 1 else panel.title)
            axes.set_xlabel("layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        line[0].set_ylabel(panel.label)
    for place, run in enumerate(runs):
        bar = figure.colorbar(
            ScalarMappable(norm, _shades(looks[run].color)),
            ax=list(grid[:, place]),
            location="bottom",
            shrink=0.8,
            aspect=30,
        )
        bar.set_label("epoch")
        bar.ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def _shades(colour: str) -> LinearSegmentedColormap:
    """From a tone near the paper to `colour`."""
    paper = mpl.colors.to_rgb(mpl.rcParams["figure.facecolor"])
    strong = mpl.colors.to_rgb(colour)
    pale = tuple(0.72 * light + 0.28 * full for light, full in zip(paper, strong, strict=True))
    return LinearSegmentedColormap.from_list("shades", [pale, strong])
