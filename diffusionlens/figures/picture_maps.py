"""Sample pictures with the maps of models and layers beside them: PiB scores, and PCA of patch tokens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from diffusionlens.figures.style import new_figure, short_names
from diffusionlens.material import ModelMaterial, SamplePicture

_CELL = 1.18  # inches
_BOX = "#ffffff"
_HEAD = 0.42  # inches for the column titles
_SHOWN = 5


def shown_layers(layers: Sequence[int], models: int = 1) -> list[int]:
    """First, middle and last of `layers` (fewer when there are fewer); of many models the last ones only."""
    ordered = sorted(layers)
    chosen = sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})
    return chosen if models <= 2 else chosen[-2:] if models <= 4 else chosen[-1:]


def overlay_places(pictures: Sequence[SamplePicture]) -> list[int]:
    """Which pictures the overlay shows: those with boxes, those with a single one first."""
    boxed = [place for place, picture in enumerate(pictures) if len(picture.boxes)]
    return sorted(boxed, key=lambda place: len(pictures[place].boxes) > 1)[:_SHOWN]


def pib_overlay(material: Sequence[ModelMaterial]) -> Figure | None:
    """Boxes, score map and arg-max patch on the sample pictures, by model and layer; None without PiB."""
    present = [entry for entry in material if entry.score_maps and entry.pictures]
    if not present:
        return None
    columns = [(entry, layer) for entry in present for layer in shown_layers(list(entry.score_maps), len(present))]
    places = overlay_places(present[0].pictures)
    if not places:
        return None
    figure, grid = picture_grid(len(places), len(columns) + 1)
    for row, place in enumerate(places):
        _show_picture(grid[row][0], present[0].pictures[place])
        for axes, (entry, layer) in zip(grid[row][1:], columns, strict=True):
            _show_scores(axes, entry.pictures[place], entry.score_maps[layer][place])
    _head(grid[0], columns, many=len(present) > 1)
    return figure


def pca_pictures(material: Sequence[ModelMaterial]) -> Figure | None:
    """The first three components of patch tokens as colours, by model and layer; None without PCA."""
    present = [entry for entry in material if entry.pca_maps and entry.pictures]
    if not present:
        return None
    columns = [(entry, layer) for entry in present for layer in shown_layers(list(entry.pca_maps), len(present))]
    pictures = min(len(present[0].pictures), _SHOWN)
    figure, grid = picture_grid(pictures, len(columns) + 1)
    for place in range(pictures):
        _show_picture(grid[place][0], present[0].pictures[place], boxes=False)
        for axes, (entry, layer) in zip(grid[place][1:], columns, strict=True):
            axes.imshow(entry.pca_maps[layer][place])
    _head(grid[0], columns, many=len(present) > 1)
    return figure


def picture_grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure of cells of one size without axes, with a line of titles above."""
    figure = new_figure(_CELL * columns, _CELL * rows + _HEAD)
    figure.set_layout_engine("none")  # cells of one size need no solver
    top = 1 - _HEAD / (_CELL * rows + _HEAD)
    places = {"left": 0.005, "right": 0.995, "bottom": 0.005, "top": top, "wspace": 0.04, "hspace": 0.04}
    grid = figure.subplots(rows, columns, squeeze=False, gridspec_kw=places)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure, [list(row) for row in grid]


def _show_picture(axes: Axes, picture: SamplePicture, *, boxes: bool = True) -> None:
    axes.imshow(picture.image)
    if boxes:
        outline(axes, picture.boxes)


def outline(axes: Axes, boxes: np.ndarray, color: str = _BOX) -> None:
    """Frames around boxes [K,4] (XYXY pixels) of a picture that is shown pixel by pixel."""
    for x0, y0, x1, y1 in boxes:
        for tone, width in (("#000000", 2.4), (color, 1.2)):  # white on black can be seen on any picture
            axes.add_patch(
                Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=tone, linewidth=width)
            )


def _show_scores(axes: Axes, picture: SamplePicture, scores: np.ndarray) -> None:
    height, width = picture.image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    grey = picture.image.mean(-1)
    axes.imshow(grey, cmap="gray", extent=extent, vmin=0, vmax=255)
    axes.imshow(scores, cmap="inferno", extent=extent, alpha=0.72)
    outline(axes, picture.boxes)
    row, column = divmod(int(np.argmax(scores)), scores.shape[1])
    across, down = width / scores.shape[1], height / scores.shape[0]
    place = ((column + 0.5) * across - 0.5, (row + 0.5) * down - 0.5)
    axes.plot(*place, marker="o", markersize=6, markerfacecolor="none", markeredgecolor="#000000", markeredgewidth=2.6)
    axes.plot(*place, marker="o", markersize=6, markerfacecolor="none", markeredgecolor="#00e5ff", markeredgewidth=1.4)


def _head(row: list[Axes], columns: list[tuple[ModelMaterial, int]], *, many: bool) -> None:
    row[0].set_title("picture", fontsize=8, loc="center")
    names = short_names(list(dict.fromkeys(entry.model for entry, _ in columns)), 14)
    for axes, (entry, layer) in zip(row[1:], columns, strict=True):
        title = f"{names[entry.model]}\nlayer {layer}" if many else f"layer {layer}"
        axes.set_title(title, fontsize=6.5 if many and len(names[entry.model]) > 12 else 8, loc="center")
