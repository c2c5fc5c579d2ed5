"""Differences to a baseline by layer, with the interval of pairs and the line where there is none."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from diffusionlens.figures.layer_curves import Panel, small_multiples
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
    return small_multiples(differences, models, DIFFERENCE_PANELS, columns, zero=True)
