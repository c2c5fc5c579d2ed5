"""Which patches are background, and how far they lie from an object: no pixel of theirs is ever changed."""

import torch
from torch import Tensor

from diffusionlens.analysis.diffusion.erase import pixels_of
from diffusionlens.analysis.regions import object_patches, patches_in_boxes
from diffusionlens.data.sample import Sample

RINGS = {"ring 1": (1, 1), "ring 2": (2, 2), "ring 3-4": (3, 4), "ring 5+": (5, 10**6), "all": (1, 10**6)}
"""Name -> first and last ring: 1 is the ring of patches next to those that the box touches."""


def background(sample: Sample, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Patches whose centre lies outside every box (crowds and difficult objects too) dilated by one patch, bool [h,w].

    Such a patch ends half a patch before the box, so that filling the box changes none of its pixels.
    """
    if len(sample.boxes) == 0:
        return torch.ones(grid, dtype=torch.bool)
    across, down = patch[1], patch[0]
    dilated = sample.boxes.as_subclass(Tensor) + torch.tensor([-across, -down, across, down])
    return ~patches_in_boxes(dilated, grid, patch, "center").any(0)


def rings(sample: Sample, box: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Rings of patches around `box` [4], int [h,w]: 0 where it touches the patch or the centre lies in any box; 1 for the
    patches next to those that it touches, and so on (Chebyshev distance)."""
    rows, columns = pixels_of(box)
    down = _steps(rows, grid[0], patch[0])
    across = _steps(columns, grid[1], patch[1])
    distance = torch.maximum(down[:, None], across[None])
    distance[object_patches(sample, grid, patch)] = 0
    return distance


def _steps(pixels: slice, count: int, size: int) -> Tensor:
    """[count]: patches from each to the nearest that `pixels` touch, along one axis."""
    first, last = pixels.start // size, (pixels.stop - 1) // size
    place = torch.arange(count)
    return torch.maximum(first - place, place - last).clamp(min=0)


def ring_masks(ring: Tensor) -> Tensor:
    """[R,h,w] bool: the patches of each of `RINGS`."""
    return torch.stack([(ring >= low) & (ring <= high) for low, high in RINGS.values()])
