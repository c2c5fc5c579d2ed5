"""The boxes that LOST and TokenCut propose, beside the annotated ones."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffusionlens.figures.picture_maps import outline, picture_grid
from diffusionlens.figures.style import short_names
from diffusionlens.material import DiscoveredPicture, ModelMaterial

_SHOWN = 5
_LOST, _TOKENCUT = "#ff9f1c", "#00e5ff"


def discovered(material: Sequence[ModelMaterial]) -> Figure | None:
    """Sample pictures with annotated boxes and both proposals: a line per model, a column per picture; None without any."""
    present = [entry for entry in material if entry.discovered]
    if not present:
        return None
    count = min(min(len(entry.discovered) for entry in present), _SHOWN)
    figure, grid = picture_grid(len(present), count)
    names = short_names([entry.model for entry in present], 18)
    for line, entry in zip(grid, present, strict=True):
        for axes, picture in zip(line, entry.discovered[:count], strict=True):
            _show(axes, picture)
        line[0].text(0.04, 0.04, names[entry.model], transform=line[0].transAxes, fontsize=7, color="#ffffff").set_bbox(
            {"facecolor": "#000000", "alpha": 0.6, "pad": 1.5, "edgecolor": "none"}
        )
    return figure


def _show(axes: Axes, picture: DiscoveredPicture) -> None:
    axes.imshow(picture.image)
    outline(axes, picture.boxes)
    outline(axes, picture.lost[None], _LOST)
    # A little smaller, so that both are seen where they agree.
    outline(axes, picture.tokencut[None] + np.array([1.5, 1.5, -1.5, -1.5], np.float32), _TOKENCUT)
