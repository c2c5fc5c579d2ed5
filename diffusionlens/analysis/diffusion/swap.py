"""Puts another picture's object in the place of a picture's own."""

import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.diffusion.erase import erase, pixels_of
from diffusionlens.data.sample import Sample

_EDGE_SHARE = 0.1
"""Width of the soft edge, of the box's shorter side."""


def main_box(sample: Sample) -> Tensor | None:
    """The largest box [4] of a counted object (no crowd, not difficult) that the crop has left; the first of equals."""
    boxes = sample.boxes.as_subclass(Tensor)[~(sample.crowd | sample.difficult)]
    if len(boxes) == 0:
        return None
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return boxes[int(area.argmax())]


def swap(image: Tensor, box: Tensor, donor: Tensor, donor_box: Tensor) -> Tensor:
    """The picture with what `donor_box` holds scaled into `box`, over the erased box and with a soft edge inside it.

    No pixel outside `box` changes. The donor's box is stretched to the form of `box`, and holds the donor's background
    beside the object too.

    Args:
        image, donor: [3,H,W].
        box, donor_box: [4] XYXY pixels, each of its picture.

    Raises:
        ValueError: `box` covers the whole picture.
    """
    rows, columns = pixels_of(box)
    height, width = rows.stop - rows.start, columns.stop - columns.start
    there = donor[(slice(None), *pixels_of(donor_box))]
    low, high = there.amin((1, 2), keepdim=True), there.amax((1, 2), keepdim=True)
    scaled = functional.interpolate(there[None], (height, width), mode="bicubic", antialias=True)[0]
    swapped = erase(image, box[None])
    share = _soft_edge(height, width)
    swapped[:, rows, columns] += share * (scaled.minimum(high).maximum(low) - swapped[:, rows, columns])
    return swapped


def _soft_edge(height: int, width: int) -> Tensor:
    """Share of the donor [h,w]: rises from the box's edge to 1 over `_EDGE_SHARE` of its shorter side, smoothly."""
    reach = max(_EDGE_SHARE * min(height, width), 1.0)
    across, down = (_to_edge(length, reach) for length in (width, height))
    rise = torch.minimum(down[:, None], across[None])
    return rise * rise * (3 - 2 * rise)


def _to_edge(length: int, reach: float) -> Tensor:
    centre = torch.arange(length) + 0.5
    return (torch.minimum(centre, length - centre) / reach).clamp(max=1)
