"""Semantic diffusion in figures: spread by layer and distance, what was done to pictures, and where likeness comes from."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from diffusionlens.figures.layer_curves import Panel
from diffusionlens.figures.picture_maps import outline, picture_grid
from diffusionlens.figures.style import new_figure, short_names
from diffusionlens.material import DiscoveredPicture, InterventionPicture, ModelMaterial, ProvenanceMap

RINGS = ("ring 1", "ring 2", "ring 3-4", "ring 5+")
_SHOWN = 5
_LOST, _TOKENCUT = "#ff9f1c", "#00e5ff"

LEAKAGE_PANELS = (
    Panel("Label read, object in place", "pictures (%)", "diffusion", "leakage_full"),
    Panel("Label read, object erased", "pictures (%)", "diffusion", "leakage_erased"),
    Panel("Leakage: the difference", "points", "diffusion", "leakage"),
    Panel("Spread: all patches around the object", "share of a whole change", "diffusion", "spread", "all"),
)


def spread_by_distance(results: pd.DataFrame, models: Sequence[str]) -> Figure | None:
    """Layer x ring heat map of spread, one panel per model on one colour scale; None without spread. A ring that no picture of
    any model has (small grids, large objects) is left out."""
    rows = results[
        (results["analysis"] == "diffusion") & (results["metric"] == "spread") & results["token"].isin(RINGS)
    ]
    present = [model for model in models if (rows["model"] == model).any()]
    if not present:
        return None
    shown = [ring for ring in RINGS if rows.loc[rows["token"] == ring, "value"].notna().any()]
    tables = [
        rows[rows["model"] == model].pivot(index="layer", columns="token", values="value").reindex(columns=shown)
        for model in present
    ]
    figure = new_figure(2.6 * len(present) + 1.0, max(0.26 * max(map(len, tables)) + 1.1, 2.0))
    grid = figure.subplots(1, len(present), squeeze=False)[0]
    high = max(float(np.nanmax(table.to_numpy())) for table in tables) or 1.0
    names = short_names(present, 26)
    for axes, model, table in zip(grid, present, tables, strict=True):
        image = axes.imshow(
            table.to_numpy(dtype=float), aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=high
        )
        axes.set_title(names[model])
        axes.set_xticks(range(len(shown)), [ring.removeprefix("ring ") for ring in shown])
        axes.set_yticks(range(len(table)), [str(layer) for layer in table.index])
        axes.set_xlabel("patches from the box")
        axes.tick_params(length=0)
        axes.grid(visible=False)
    grid[0].set_ylabel("layer")
    bar = figure.colorbar(image, ax=list(grid), label="spread")
    bar.outline.set_visible(False)
    return figure


def interventions(material: Sequence[ModelMaterial]) -> Figure | None:
    """Sample pictures as they were, with the objects erased and with the main object swapped; None without any."""
    pictures = _first(material, "interventions")
    if not pictures:
        return None
    figure, grid = picture_grid(len(pictures), 4)
    for row, picture in zip(grid, pictures, strict=True):
        assert isinstance(picture, InterventionPicture)
        row[0].imshow(picture.image)
        outline(row[0], picture.boxes)
        _show_probed(row[1], picture)
        for axes, changed in zip(row[2:], (picture.erased, picture.swapped), strict=True):
            if changed is not None:
                axes.imshow(changed)
    for axes, title in zip(grid[0], ("picture", "probed patches", "erased", "swapped"), strict=True):
        axes.set_title(title, fontsize=8, loc="center")
    return figure


def _show_probed(axes: Axes, picture: InterventionPicture) -> None:
    height, width = picture.image.shape[:2]
    shares = np.asarray([height, width]) // np.asarray(picture.background.shape)
    large = picture.background.repeat(shares[0], 0).repeat(shares[1], 1)
    axes.imshow(np.where(large[..., None], picture.image, picture.image // 5 + 20))


def provenance_maps(material: Sequence[ModelMaterial]) -> Figure | None:
    """|Attribution| of one patch's likeness to CLS, a background and an object patch a picture; models side by side."""
    present = [entry for entry in material if entry.provenance_maps]
    if not present:
        return None
    count = min(len(entry.provenance_maps) for entry in present)
    figure, grid = picture_grid(count, len(present) + 1)
    names = short_names([entry.model for entry in present], 14)
    for place in range(count):
        first = present[0].provenance_maps[place]
        grid[place][0].imshow(first.image)
        outline(grid[place][0], first.boxes)
        _mark_patch(grid[place][0], first)
        for axes, entry in zip(grid[place][1:], present, strict=True):
            _show_attribution(axes, entry.provenance_maps[place])
    grid[0][0].set_title("picture", fontsize=8, loc="center")
    for axes, entry in zip(grid[0][1:], present, strict=True):
        axes.set_title(f"{names[entry.model]}\nlayer {entry.provenance_maps[0].layer}", fontsize=7, loc="center")
    return figure


def _show_attribution(axes: Axes, found: ProvenanceMap) -> None:
    """The square root brings out small attributions beside the patch's own; the scale is the map's own."""
    height, width = found.patch_size
    cells = found.pixels.reshape(found.pixels.shape[0] // height, height, found.pixels.shape[1] // width, width)
    extent = (-0.5, found.pixels.shape[1] - 0.5, found.pixels.shape[0] - 0.5, -0.5)
    axes.imshow(np.sqrt(cells.sum((1, 3))), cmap="inferno", extent=extent)
    outline(axes, found.boxes)
    _mark_patch(axes, found)


def _mark_patch(axes: Axes, found: ProvenanceMap) -> None:
    (row, column), (height, width) = found.patch, found.patch_size
    place = (column * width - 0.5, row * height - 0.5)
    axes.add_patch(Rectangle(place, width, height, fill=False, edgecolor="#00e5ff", linewidth=1.4))


def discovered(material: Sequence[ModelMaterial]) -> Figure | None:
    """The boxes of LOST and TokenCut beside the annotated ones, a column per model; None without discovery."""
    present = [entry for entry in material if entry.discovered]
    if not present:
        return None
    count = min(min(len(entry.discovered) for entry in present), _SHOWN)
    figure, grid = picture_grid(count, len(present))
    names = short_names([entry.model for entry in present], 14)
    for column, entry in enumerate(present):
        for place in range(count):
            _show_boxes(grid[place][column], entry.discovered[place])
        grid[0][column].set_title(names[entry.model], fontsize=8, loc="center")
    return figure


def _show_boxes(axes: Axes, picture: DiscoveredPicture) -> None:
    axes.imshow(picture.image)
    outline(axes, picture.boxes)
    outline(axes, picture.lost[None], _LOST)
    outline(axes, picture.tokencut[None] + np.array([1.5, 1.5, -1.5, -1.5], np.float32), _TOKENCUT)


def _first(material: Sequence[ModelMaterial], name: str) -> list[object]:
    return next((list(getattr(entry, name))[:_SHOWN] for entry in material if getattr(entry, name)), [])
