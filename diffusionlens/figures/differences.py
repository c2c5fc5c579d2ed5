"""Differences to a baseline by layer, with the interval of pairs and the line where there is none."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from diffusionlens.figures.layer_curves import Panel, draw_curves, name_models
from diffusionlens.figures.style import SOFT, new_figure
from diffusionlens.figures.trajectories import DENSE_PANELS

DIFFERENCE_PANELS = (
    *DENSE_PANELS,
    Panel("Segmentation probe", "mIoU of a picture", "segmentation", "miou", "patch"),
    Panel("Depth probe", "RMSE (m)", "depth", "rmse", "patch"),
    Panel("Nearest neighbours, k = 20", "pictures (%)", "classification", "knn_top1", "cls k=20"),
)


def differences_by_layer(differences: pd.DataFrame, models: Sequence[str], columns: int = 3) -> Figure | None:
    """Small multiples of model minus baseline by layer; None where no metric of the panels is there.

    Args:
        differences: the columns of results.csv, `value` being the difference.
        models: the baseline, which has no line, first, so that every model keeps its colour of other figures.
    """
    present = [panel for panel in DIFFERENCE_PANELS if not panel.rows(differences).empty]
    if not present:
        return None
    columns = min(columns, len(present))
    height = -(-len(present) // columns)
    figure = new_figure(3.0 * columns + 0.4, 2.35 * height + 0.4)
    grid = figure.subplots(height, columns, squeeze=False)
    for axes, panel in zip(grid.flat, present, strict=False):
        axes.axhline(0, color=SOFT, linestyle=":", linewidth=1.2, zorder=1)
        draw_curves(axes, panel.rows(differences), models)
        axes.set_title(panel.title)
        axes.set_ylabel(panel.label)
    for axes in list(grid.flat)[len(present) :]:
        axes.set_axis_off()
    name_models(figure, *grid.flat[: len(present)])
    return figure
