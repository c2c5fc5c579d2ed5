"""Takes objects out of a picture: their boxes are filled from what surrounds them. No pixel outside the boxes changes."""

import math
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array, identity
from scipy.sparse.linalg import splu
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from diffusionlens.analysis.intervals import Floats

Fill = Literal["mean", "blur", "inpaint"]

BORDER = 4
"""Width in pixels of the frame around a box whose mean fills it."""


def pixels_of(box: Tensor) -> tuple[slice, slice]:
    """Rows and columns of the pixels that a box [4] (XYXY) touches."""
    x0, y0, x1, y1 = (float(value) for value in box.as_subclass(Tensor))
    return slice(math.floor(y0), math.ceil(y1)), slice(math.floor(x0), math.ceil(x1))


def boxed_pixels(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """The pixels that any box touches, bool [H,W]."""
    inside = torch.zeros(size, dtype=torch.bool)
    for box in boxes:
        inside[pixels_of(box)] = True
    return inside


def erase(image: Tensor, boxes: Tensor, fill: Fill = "mean") -> Tensor:
    """The picture with every box filled.

    mean: each box by the mean of the pixels within `BORDER` of it that lie in no box (of all pixels in no box, where there
    are none so near). blur: the picture through a Gaussian of a quarter of the box's shorter side; keeps the object's
    colours, so it erases the less. inpaint: the smoothest surface over the boxes that continues what surrounds them
    (Laplace's equation, with free edges at the picture's border).

    Args:
        image: [3,H,W].
        boxes: [K,4] XYXY pixels, clipped to the picture.

    Raises:
        ValueError: the boxes leave no pixel of the picture.
    """
    inside = boxed_pixels(boxes, (image.shape[1], image.shape[2]))
    if inside.all():
        raise ValueError("the boxes cover the whole picture")
    erased = image.clone()
    if fill == "inpaint":
        erased[:, inside] = torch.from_numpy(_harmonic(image.double().numpy(), inside.numpy())).to(image.dtype)
        return erased
    for box in boxes:
        rows, columns = pixels_of(box)
        if fill == "mean":
            near = _frame(rows, columns, inside)
            colour = image[:, near if near.any() else ~inside].mean(1)
            erased[:, rows, columns] = colour[:, None, None]
        else:
            erased[:, rows, columns] = _blurred(image, rows, columns)
    return erased


def _frame(rows: slice, columns: slice, inside: Tensor) -> Tensor:
    """Pixels within `BORDER` of the box and in no box, bool [H,W]."""
    near = torch.zeros_like(inside)
    near[max(rows.start - BORDER, 0) : rows.stop + BORDER, max(columns.start - BORDER, 0) : columns.stop + BORDER] = (
        True
    )
    return near & ~inside


def _blurred(image: Tensor, rows: slice, columns: slice) -> Tensor:
    return blur(image, min(rows.stop - rows.start, columns.stop - columns.start) / 4)[:, rows, columns]


def blur(image: Tensor, sigma: float) -> Tensor:
    """The picture [3,H,W] through a Gaussian of `sigma` pixels, as wide as the picture allows (its border is mirrored)."""
    reach = [min(math.ceil(3 * sigma), side - 1) for side in (image.shape[2], image.shape[1])]
    return transforms.gaussian_blur(image, [2 * half + 1 for half in reach], [max(sigma, 0.1)] * 2)


def _harmonic(image: Floats, inside: np.ndarray) -> Floats:
    """Values [3,P] of the pixels `inside` whose every one is the mean of its neighbours in the picture."""
    number = np.full(inside.shape, -1)
    number[inside] = np.arange(inside.sum())
    rows, columns = np.nonzero(inside)
    degree = np.zeros(len(rows))
    known = np.zeros((len(rows), len(image)))
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        r, c = rows + down, columns + right
        here = (r >= 0) & (r < inside.shape[0]) & (c >= 0) & (c < inside.shape[1])
        own, neighbour = np.flatnonzero(here), number[r[here], c[here]]
        degree += here
        unknown = neighbour >= 0
        pairs.append((own[unknown], neighbour[unknown]))
        known[own[~unknown]] += image[:, r[here][~unknown], c[here][~unknown]].T
    own, neighbour = (np.concatenate(part) for part in zip(*pairs, strict=True))
    links = csr_array((np.ones(len(own)), (own, neighbour)), shape=(len(rows), len(rows)))
    laplacian = identity(len(rows), format="csr").multiply(degree[:, None]) - links
    return splu(laplacian.tocsc()).solve(known).T
