"""What was done to sample pictures, and from where a patch has its likeness to the image token."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from diffusionlens.figures.picture_maps import outline, picture_grid
from diffusionlens.figures.style import short_names
from diffusionlens.material import InterventionPicture, ModelMaterial, ProvenanceMap

_SHOWN = 5
_BRIGHT = 99.0  # percentile of |attribution| that is drawn brightest: single pixels stand out far


def interventions(material: Sequence[ModelMaterial]) -> Figure | None:
    """Sample pictures, the same with the objects erased and with the object exchanged, and the patches that are probed; None
    without any."""
    pictures = next((entry.interventions for entry in material if entry.interventions), [])[:_SHOWN]
    if not pictures:
        return None
    figure, grid = picture_grid(len(pictures), 4)
    for row, picture in zip(grid, pictures, strict=True):
        row[0].imshow(picture.image)
        outline(row[0], picture.boxes)
        for axes, changed in zip(row[1:3], (picture.erased, picture.swapped), strict=True):
            if changed is not None:
                axes.imshow(changed)
        _show_background(row[3], picture)
    for axes, title in zip(grid[0], ("picture", "object erased", "object exchanged", "patches probed"), strict=True):
        axes.set_title(title, fontsize=8, loc="center")
    return figure


def _show_background(axes: Axes, picture: InterventionPicture) -> None:
    height, width = picture.image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(picture.image.mean(-1), cmap="gray", extent=extent, vmin=0, vmax=255)
    shade = np.zeros((*picture.background.shape, 4))
    shade[picture.background] = (0.34, 0.71, 0.91, 0.55)
    axes.imshow(shade, extent=extent)
    outline(axes, picture.boxes)


def provenance(material: Sequence[ModelMaterial]) -> Figure | None:
    """|attribution| of one background and one object patch of sample pictures, a column a model; None without any."""
    present = [entry for entry in material if entry.provenance_maps]
    if not present:
        return None
    keys = [(found.name, found.kind) for found in present[0].provenance_maps]
    figure, grid = picture_grid(len(keys), len(present) + 1)
    names = short_names([entry.model for entry in present], 14)
    for row, key in zip(grid, keys, strict=True):
        for place, entry in enumerate(present):
            found = next((one for one in entry.provenance_maps if (one.name, one.kind) == key), None)
            if found is None:
                continue
            if place == 0:
                row[0].imshow(found.image)
                outline(row[0], found.boxes)
                _mark(row[0], found)
            bright = max(float(np.percentile(found.pixels, _BRIGHT)), 1e-12)
            row[place + 1].imshow(found.pixels, cmap="inferno", vmin=0, vmax=bright)
            outline(row[place + 1], found.boxes)
            _mark(row[place + 1], found)
    grid[0][0].set_title("picture", fontsize=8, loc="center")
    for axes, entry in zip(grid[0][1:], present, strict=True):
        title = f"{names[entry.model]}\nlayer {entry.provenance_maps[0].layer}"
        axes.set_title(title, fontsize=8, loc="center")
    return figure


def _mark(axes: Axes, found: ProvenanceMap) -> None:
    (row, column), (down, across) = found.patch, found.patch_size
    for colour, width in (("#000000", 2.6), ("#00e5ff", 1.4)):
        axes.add_patch(
            Rectangle(
                (column * across - 0.5, row * down - 0.5), across, down, fill=False, edgecolor=colour, linewidth=width
            )
        )
