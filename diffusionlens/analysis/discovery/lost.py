"""LOST: the seed is the patch that is like the fewest others, and the box is what is like the seed and its kind.

Source: Simeoni et al., "Localizing Objects with Self-Supervised Transformers and no Labels" (BMVC 2021, arXiv 2109.14279) and
its released code.
"""

import numpy as np
from scipy.ndimage import label

from diffusionlens.analysis.intervals import Floats

EXPANSION = 100
"""Patches of lowest degree that may join the seed, as in the paper (a grid of fewer gives all of its patches)."""


def lost_box(features: Floats, grid: tuple[int, int], expansion: int = EXPANSION) -> tuple[int, int, int, int]:
    """The box (rows from, columns from, rows to, columns to; ends exclusive) in patches.

    Args:
        features: [h*w, D]: keys of the last layer, heads joined, not normalised.

    Degrees count positive products with other patches; equal degrees go by the lowest index, which the released code leaves
    to the sorting.
    """
    products = features @ features.T
    positive = products > 0
    np.fill_diagonal(positive, False)
    order = np.argsort(positive.sum(1), kind="stable")
    seed = order[0]
    candidates = order[:expansion]
    alike = candidates[products[seed, candidates] > 0]
    return component_box(products[alike].sum(0).reshape(grid) > 0, int(seed))


def component_box(mask: np.ndarray, seed: int) -> tuple[int, int, int, int]:
    """Box of the connected part (by edges) of `mask` [h,w] that holds the patch `seed`; the seed alone when it is not in it."""
    parts, _ = label(mask)
    row, column = divmod(seed, mask.shape[1])
    if not mask[row, column]:  # keys of all zeros, or nothing alike
        return row, column, row + 1, column + 1
    rows, columns = np.nonzero(parts == parts[row, column])
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1
