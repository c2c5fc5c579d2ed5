"""Probes: the score of every token kind by layer, and what CLS and the controls add to the patches."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from diffusionlens.figures.layer_curves import draw_curves
from diffusionlens.figures.style import SOFT, legend_names, model_looks, new_figure, short_names

TOKENS = ("patch", "cls", "cls+patch", "shuffled_cls+patch", "mean+patch")
SCORES = {
    "segmentation": (("miou", "mIoU (%)", ""),),
    "depth": (("rmse", "RMSE (m)", ""),),
    "classification": (
        ("linear_top1", "linear (%)", ""),
        ("knn_top1", "k-NN, k = 20 (%)", " k=20"),
        ("logreg_top1", "logistic (%)", ""),
    ),
}


def score_rows(results: pd.DataFrame, metric: str, suffix: str = "") -> pd.DataFrame:
    """The rows of a score, their token kinds without the suffix."""
    rows = results[(results["metric"] == metric) & results["analysis"].isin(list(SCORES))]
    rows = rows[rows["token"].isin([token + suffix for token in TOKENS])]
    return rows.assign(token=rows["token"].str.removesuffix(suffix) if suffix else rows["token"])


def probe_by_layer(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """A row of panels per score, one panel per model, one line per token kind with its interval; None without probes."""
    panels = [
        (label, score_rows(results, metric, suffix))
        for scores in SCORES.values()
        for metric, label, suffix in scores
        if not score_rows(results, metric, suffix).empty
    ]
    if not panels:
        return None
    figure = new_figure(max(3.3 * len(models) + 0.4, 5.0), 2.7 * len(panels) + 0.6)
    several = pd.concat([rows for _, rows in panels]).groupby("model")["layer"].nunique()
    alone = bool((several == 1).all())  # each model's last layer, say, which is another number for each
    grid = figure.subplots(len(panels), len(models), squeeze=False, sharey="row", sharex="col" if alone else True)
    names = short_names(models, 26)
    kinds = [kind for kind in TOKENS if any((rows["token"] == kind).any() for _, rows in panels)]
    for line, (label, rows) in zip(grid, panels, strict=True):
        for axes, model in zip(line, models, strict=True):
            own = rows[rows["model"] == model].sort_values("layer", kind="stable")
            if not own.empty:
                draw_curves(axes, own.assign(model=own["token"]), TOKENS, alone=alone)
            axes.set_title(names[model])
        line[0].set_ylabel(label)
    handles, labels = max((axes.get_legend_handles_labels() for axes in grid.flat), key=lambda found: len(found[0]))
    columns = max(1, min(len(kinds), int(figure.get_size_inches()[0] * 13 // 28)))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
    return figure


def gain_bars(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """Gains over the patches in the last layer, with intervals over seeds; None without them."""
    rows = results[(results["analysis"] == "complementarity") & (results["metric"] == "gain")]
    present = [model for model in models if (rows["model"] == model).any()]
    if not present:
        return None
    kinds = [kind for kind in TOKENS if (rows["token"] == kind).any()]
    looks, names = model_looks(TOKENS), short_names(present, 22)
    figure = new_figure(max(1.6 * len(present) + 2.0, 5.0), 3.2)
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        heights, bars = [], []
        for model in present:
            own = rows[rows["model"] == model]
            own = own[(own["layer"] == own["layer"].max()) & (own["token"] == kind)]
            value, low, high = (float(own[name].iloc[0]) if len(own) else np.nan for name in ("value", "low", "high"))
            heights.append(value)
            bars.append([0.0 if np.isnan(low) else value - low, 0.0 if np.isnan(high) else high - value])
        middle = np.arange(len(present)) + (place - (len(kinds) - 1) / 2) * width
        axes.bar(
            middle, heights, 0.92 * width, yerr=np.array(bars).T, color=looks[kind].color, label=legend_names(kinds)[kind],
            error_kw={"ecolor": SOFT, "elinewidth": 1.4, "capsize": 3},
        )  # fmt: skip
    axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.set_xticks(range(len(present)), [names[model] for model in present])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("gain over patch")
    axes.set_title("What stands beside the patches, last layer")
    figure.legend(loc="outside upper left", ncols=len(kinds))
    return figure
