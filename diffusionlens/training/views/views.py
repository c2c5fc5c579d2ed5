"""From a picture to the views that the networks see: one part in the workers, one on the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from diffusionlens.training.recipe import Recipe
from diffusionlens.training.views.crops import MultiCrop, sample_seed
from diffusionlens.training.views.device_augment import DeviceAugment
from diffusionlens.training.views.loader import ViewBatch


def multi_crop(recipe: Recipe) -> MultiCrop:
    """The recipe's views."""
    crops, colours = recipe.crops, recipe.augmentation
    return MultiCrop(
        global_size=crops.global_size,
        global_scale=crops.global_scale,
        local_size=crops.local_size,
        local_scale=crops.local_scale,
        local_count=crops.local_count,
        flip=colours.flip,
        jitter=(colours.brightness, colours.contrast, colours.saturation, colours.hue),
        jitter_probability=colours.jitter,
        grey=colours.grey,
        blur=colours.blur,
        blur_radius=colours.blur_radius,
        solarize=colours.solarize,
    )


@dataclass(frozen=True)
class Cut:
    """What a worker does with a picture: all of it, or with `colours_later` the crops alone."""

    views: MultiCrop
    run_seed: int
    colours_later: bool

    def __call__(self, picture: Image.Image, epoch: int, index: int) -> Sequence[Tensor]:
        seed = sample_seed(self.run_seed, epoch, index)
        return self.views.cut_tensors(picture, seed) if self.colours_later else self.views(picture, seed)


def make_cut(recipe: Recipe) -> Cut:
    """The workers' part."""
    return Cut(multi_crop(recipe), recipe.seed, colours_later=recipe.augmentation.place == "device")


def make_prepare(recipe: Recipe, device: torch.device) -> Callable[[ViewBatch], list[Tensor]]:
    """The device's part: a batch from the workers to float32 [B,3,S,S] for each view, normalised."""
    augment = DeviceAugment(multi_crop(recipe)) if recipe.augmentation.place == "device" else None

    def prepare(batch: ViewBatch) -> list[Tensor]:
        views = [view.to(device, non_blocking=True) for view in batch.views]
        if augment is None:
            return views
        return augment(views, [sample_seed(recipe.seed, key.epoch, key.index) for key in batch.keys])

    return prepare
