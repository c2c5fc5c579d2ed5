"""Test pictures with their labels and what heads say: classes in one palette, depths on one scale."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from diffusionlens.figures.style import new_figure, short_names
from diffusionlens.material import ModelMaterial, ProbedPicture

IGNORE = 255
_CELL = 1.5  # inches
_HEAD, _LINE, _BAR = 0.46, 0.2, 0.8  # inches: titles, a line of the legend, the colour bar with its numbers
_NAMED = 15  # classes in the legend
_MAP = "viridis"
_MOST = 95  # percentile of the measured depths at which the scale ends: one far room would take it from all others
_LIGHT, _DARK = 205, 165  # greys of the hatching

Pixels = NDArray[np.uint8]


def segmentation_pictures(material: Sequence[ModelMaterial]) -> Figure | None:
    """Picture, labels and predicted classes, by model and token kind; None without segmentation probes."""
    present = [entry for entry in material if entry.probed and entry.probed[0].classes]
    if not present:
        return None
    names = _legend(present)
    columns = 2 + sum(len(entry.probed[0].predicted) for entry in present)
    across = max(1, int(_CELL * columns / 1.35))
    figure, grid = _grid(present, below=_LINE * -(-(len(names) + 1) // across) + 0.1)
    for line, maps in zip(grid, _lines(present), strict=True):
        for axes, labels in zip(line[1:], maps, strict=True):
            axes.imshow(class_colours(labels))
    handles = [Patch(facecolor=to_hex(tuple(_palette(number) / 255)), label=name) for number, name in names]
    handles.append(Patch(facecolor=str(_LIGHT / 255), edgecolor=str(_DARK / 255), hatch="////", label="ignored"))
    figure.legend(handles=handles, loc="lower center", ncols=min(across, len(handles)), fontsize=7, handlelength=1.2)
    return figure


def depth_pictures(material: Sequence[ModelMaterial]) -> Figure | None:
    """Picture, measured and predicted depth, by model and token kind, all on one scale; None without depth probes."""
    present = [entry for entry in material if entry.probed and not entry.probed[0].classes]
    if not present:
        return None
    figure, grid = _grid(present, right=_BAR)
    measured = np.concatenate([picture.truth[np.isfinite(picture.truth)] for picture in present[0].probed])
    scale = Normalize(0, float(np.percentile(measured, _MOST)) if len(measured) else 1.0, clip=True)
    for line, maps in zip(grid, _lines(present), strict=True):
        for axes, metres in zip(line[1:], maps, strict=True):
            axes.imshow(depth_colours(metres, scale))
    width, height = figure.get_size_inches()
    place = ((width - _BAR + 0.08) / width, 0.06, 0.12 / width, 1 - 0.12 - _HEAD / height)
    bar = figure.colorbar(ScalarMappable(scale, _MAP), cax=figure.add_axes(place), extend="max")
    bar.set_label("depth (m)")
    bar.outline.set_visible(False)
    return figure


def class_colours(labels: NDArray[np.generic]) -> Pixels:
    """[H,W] places of classes as colours [H,W,3]; 255, which is ignored, is hatched."""
    table = np.stack([_palette(number) for number in range(256)])
    colours = table[np.asarray(labels).astype(np.int64)]
    return _hatched(colours, np.asarray(labels) == IGNORE)


def depth_colours(metres: NDArray[np.generic], scale: Normalize) -> Pixels:
    """[H,W] metres as colours [H,W,3]; where there is no reading, hatched."""
    values = np.asarray(metres, dtype=np.float64)
    colours = mpl.colormaps[_MAP](scale(np.nan_to_num(values)))[..., :3]
    return _hatched((255 * colours).round().astype(np.uint8), ~np.isfinite(values))


def _hatched(colours: Pixels, where: NDArray[np.bool_]) -> Pixels:
    rows, columns = np.indices(where.shape)
    stripes = np.where((rows + columns) % 8 < 3, _DARK, _LIGHT).astype(np.uint8)
    return np.where(where[..., None], stripes[..., None], colours)


def _palette(number: int) -> Pixels:
    """The colour that PASCAL VOC gives an index: its bits, in turn, to the three channels from the highest bit down."""
    colour = np.zeros(3, np.uint8)
    for bit in range(3):
        for channel in range(3):
            colour[channel] |= (number >> (3 * bit + channel) & 1) << (7 - bit)
    return colour


def _legend(present: Sequence[ModelMaterial]) -> list[tuple[int, str]]:
    """The classes with most labelled and predicted pixels, in the order of the data set."""
    counts = np.zeros(256, np.int64)
    for entry in present:
        for picture in entry.probed:
            for labels in (picture.truth, *picture.predicted.values()):
                counts += np.bincount(np.asarray(labels).astype(np.int64).ravel(), minlength=256)[:256]
    counts[IGNORE] = 0
    shown = sorted(np.argsort(-counts, kind="stable")[: min(_NAMED, int((counts > 0).sum()))].tolist())
    classes = present[0].probed[0].classes
    return [(number, classes[number]) for number in shown]


def _lines(present: Sequence[ModelMaterial]) -> list[list[NDArray[np.generic]]]:
    """For every picture its labels, then the maps of every model and kind."""
    return [
        [picture.truth, *(own for entry in present for own in entry.probed[place].predicted.values())]
        for place, picture in enumerate(present[0].probed)
    ]


def _grid(present: Sequence[ModelMaterial], below: float = 0.0, right: float = 0.0) -> tuple[Figure, list[list[Axes]]]:
    """Cells as high as their pictures, which are shown already; titles above, and room for a legend or a colour bar."""
    pictures: Sequence[ProbedPicture] = present[0].probed
    titles = ["picture", "labels" if pictures[0].classes else "measured"]
    short = short_names([entry.model for entry in present], 16)
    for entry in present:
        titles += [f"{short[entry.model]}\n{kind}" for kind in entry.probed[0].predicted]
    heights = [_CELL * float(np.clip(one.image.shape[0] / one.image.shape[1], 0.4, 1.6)) for one in pictures]
    width, height = _CELL * len(titles) + right, sum(heights) + _HEAD + below
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # cells of known size need no solver
    places = {
        "left": 0.005, "right": 1 - right / width - 0.005, "bottom": below / height + 0.005, "top": 1 - _HEAD / height,
        "wspace": 0.04, "hspace": 0.04, "height_ratios": heights,
    }  # fmt: skip
    cells = figure.subplots(len(pictures), len(titles), squeeze=False, gridspec_kw=places)
    for axes in cells.flat:
        axes.set_axis_off()
    for axes, title in zip(cells[0], titles, strict=True):
        axes.set_title(title, fontsize=7.5, loc="center")
    for line, picture in zip(cells, pictures, strict=True):
        line[0].imshow(picture.image)
    return figure, [list(line) for line in cells]
