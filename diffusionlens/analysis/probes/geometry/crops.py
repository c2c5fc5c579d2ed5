"""What DINOv2's protocol makes of a picture: random crops to learn from, and views of the whole to be scored on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from diffusionlens.analysis.probes.geometry.views import Padding, Views, whole, windows
from diffusionlens.analysis.probes.settings.recipe import (
    StreamedDepthRecipe,
    StreamedRecipe,
    StreamedSegmentationRecipe,
)
from diffusionlens.analysis.probes.streamed.scores import Fit
from diffusionlens.data.sample import Picture, PictureSource, Transform
from diffusionlens.data.transforms.random_crops import (
    KB_SIZE,
    DepthCrops,
    SegmentationCrops,
    normalised,
    without_border,
)
from diffusionlens.models.backbone import Backbone
from diffusionlens.spec import parse_spec

_DEPTH_CROP, _DEPTH_VIEW = (416, 544), (480, 640)
_KITTI_CROP = (352, 704)
_BRIGHTNESS, _KITTI_BRIGHTNESS = (0.75, 1.25), (0.9, 1.1)


@dataclass(frozen=True)
class Geometry:
    """`crops` makes the transform of a seed, whose pictures `padding` brings to the model's size; `fit` is for scoring, and
    `scored` the size of its views."""

    padding: Padding
    crops: Callable[[int], Transform]
    fit: Fit
    scored: tuple[int, int]


def geometry_of(
    recipe: StreamedRecipe, backbone: Backbone, train: PictureSource | None, test: PictureSource
) -> Geometry:
    """Settings that are "auto" go by the kind of the data set: nyuv2, kitti, or another one (as nyuv2, with its border)."""
    mean, std, patch = backbone.preprocessing.mean, backbone.preprocessing.std, backbone.patch_size
    if isinstance(recipe, StreamedSegmentationRecipe):

        def crops(seed: int) -> Transform:
            return SegmentationCrops(
                recipe.crop, mean, std, seed, recipe.ratio, recipe.most_of_one_class, recipe.flip, recipe.photometric
            )

        def slide(picture: Picture) -> tuple[Picture, Tensor, Views]:
            size = _short_side(picture.image.size, min(recipe.window))
            return picture, _at_size(picture, size, mean, std), windows(size, recipe.window, recipe.stride, patch)

        scored = Padding.around(recipe.window, patch).padded
        return Geometry(Padding.around(recipe.crop, patch), crops, slide, scored)
    assert isinstance(recipe, StreamedDepthRecipe)
    depth = recipe
    learned, tested = _borders(depth, train, test)
    crop, brightness, view = _sizes(depth, learned, tested)

    def depth_crops(seed: int) -> Transform:
        return DepthCrops(crop, mean, std, seed, learned, depth.rotate, depth.flip, brightness)

    def both(picture: Picture) -> tuple[Picture, Tensor, Views]:
        part = without_border(picture, "kb") if tested == "kb" else picture
        return part, _at_size(part, view, mean, std), whole(view, patch, mirrored=depth.mirrored)

    return Geometry(Padding.around(crop, patch), depth_crops, both, Padding.around(view, patch).padded)


def resolved(recipe: StreamedRecipe, train: PictureSource | None, test: PictureSource) -> dict[str, Any]:
    """What "auto" came to, for the manifest."""
    if not isinstance(recipe, StreamedDepthRecipe):
        return {}
    learned, tested = _borders(recipe, train, test)
    crop, brightness, view = _sizes(recipe, learned, tested)
    border = learned if learned == tested else f"{learned} in training, {tested} in scoring"
    return {"crop": crop, "brightness": brightness, "view": view, "border": border}


def _borders(recipe: StreamedDepthRecipe, train: PictureSource | None, test: PictureSource) -> tuple[str, str]:
    return _border(recipe, train or test), _border(recipe, test)


def _sizes(
    recipe: StreamedDepthRecipe, learned: str, tested: str
) -> tuple[tuple[int, int], tuple[float, float], tuple[int, int]]:
    """Crop, range of brightness and view."""
    streets = learned == "kb"
    crop = (_KITTI_CROP if streets else _DEPTH_CROP) if recipe.crop == "auto" else recipe.crop
    brightness = (_KITTI_BRIGHTNESS if streets else _BRIGHTNESS) if recipe.brightness == "auto" else recipe.brightness
    view = (KB_SIZE if tested == "kb" else _DEPTH_VIEW) if recipe.view == "auto" else recipe.view
    return crop, brightness, view


def _border(recipe: StreamedDepthRecipe, source: PictureSource) -> str:
    if recipe.border != "auto":
        return recipe.border
    return {"nyuv2": "nyu", "kitti": "kb"}.get(parse_spec(source.spec).kind, "none")


def _short_side(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Rows and columns of a picture of `size` (W, H) whose shorter side is to be `side`."""
    width, height = size
    factor = side / min(size)
    return max(side, int(height * factor + 0.5)), max(side, int(width * factor + 0.5))


def _at_size(picture: Picture, size: tuple[int, int], mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The whole picture at `size` (H, W), normalised [3,H,W]."""
    image = picture.image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return normalised(np.asarray(image), size, mean, std)
