"""Which patches belong to a box: the three rules, and the object region of a picture."""

from typing import Literal

import torch
from torch import Tensor

from diffusionlens.data.sample import Sample

BoxRule = Literal["touch", "center", "half"]


def patches_in_boxes(boxes: Tensor, grid: tuple[int, int], patch: tuple[int, int], rule: BoxRule) -> Tensor:
    """Patches of each box, bool [K,h,w].

    touch: patch indices floor(min/p) .. floor(max/p), both ends included and kept inside the grid, as in the code
    released with LAST-ViT (arXiv 2602.22394); center: the patch's centre lies in the box; half: at least half of the
    patch does.

    Args:
        boxes: [K,4] XYXY pixels, clipped to the picture.
        grid: rows and columns of patches.
        patch: height and width of a patch in pixels.
    """
    boxes = boxes.as_subclass(Tensor).double()
    x0, y0, x1, y1 = (boxes[:, i, None] for i in range(4))
    rows, columns = _along(y0, y1, grid[0], patch[0], rule), _along(x0, x1, grid[1], patch[1], rule)
    if rule == "half":
        return rows[:, :, None] * columns[:, None, :] >= 0.5
    return (rows[:, :, None] * columns[:, None, :]).bool()


def _along(low: Tensor, high: Tensor, count: int, size: int, rule: BoxRule) -> Tensor:
    """[K,count]: 1 where the patch is in the interval along one axis; for "half" the share of it that is."""
    index = torch.arange(count, dtype=torch.float64)
    if rule == "touch":
        first = (low / size).floor().clamp(0, count - 1)
        last = (high / size).floor().clamp(0, count - 1)
        return ((index >= first) & (index <= last)).double()
    if rule == "center":
        centre = (index + 0.5) * size
        return ((centre >= low) & (centre < high)).double()
    overlap = torch.minimum(high, (index + 1) * size) - torch.maximum(low, index * size)
    return overlap.clamp(min=0) / size


def object_patches(sample: Sample, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Patches whose centre lies in any box of the picture (crowds and difficult objects too), bool [h,w]."""
    return patches_in_boxes(sample.boxes, grid, patch, "center").any(0)


def patch_labels(mask: Tensor, patch: tuple[int, int]) -> Tensor:
    """The mask's value at every patch's centre pixel, int64 [h,w]."""
    return mask[patch[0] // 2 :: patch[0], patch[1] // 2 :: patch[1]]


def background_patches(
    sample: Sample, grid: tuple[int, int], patch: tuple[int, int], *, by_mask: bool = True
) -> Tensor:
    """Patches outside every box; for a picture without boxes but with a mask, patches of label 0. bool [h,w].

    Args:
        by_mask: whether 0 is the mask's background; in data that provides "parsing" it is a class, and only boxes count.
    """
    if by_mask and len(sample.boxes) == 0 and sample.mask is not None:
        return patch_labels(sample.mask, patch) == 0
    return ~object_patches(sample, grid, patch)
