"""The attention of CLS as a segmentation: how well does the best head outline an object?

Source: Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021, arXiv 2104.14294, figure 4), as
computed by the code released with Naseer et al. (NeurIPS 2021, arXiv 2105.10497).
"""

import torch
from torch import Tensor

from diffusionlens.data.sample import IGNORE

MASS = 0.6
"""Share of a head's attention that its mask keeps."""


def mass_masks(attention: Tensor, mass: float = MASS) -> Tensor:
    """Of every head the patches that hold the last `mass` of its attention when sorted upwards, bool [heads,h,w].

    Args:
        attention: [heads,h,w], not negative.
    """
    flat = attention.flatten(1).double()
    values, order = flat.sort(dim=1, stable=True)
    total = values.sum(1, keepdim=True)
    kept = (values / torch.where(total > 0, total, 1)).cumsum(1) > 1 - mass
    return torch.zeros_like(kept).scatter(1, order, kept).unflatten(1, attention.shape[1:])


def best_head_jaccard(masks: Tensor, truth: Tensor, *, ignore_void: bool = False) -> float | None:
    """Mean over the classes in a picture of the best head's Jaccard index; None for a picture without an object.

    Args:
        masks: bool [heads,h,w], brought to the size of `truth` by repeating.
        truth: int [H,W]; 0 is background, 255 void, which counts as background in the released code.
        ignore_void: leave void pixels out of both sums instead.
    """
    rows, columns = (side // count for side, count in zip(truth.shape, masks.shape[1:], strict=True))
    large = masks.repeat_interleave(rows, 1).repeat_interleave(columns, 2)
    counted = truth != IGNORE if ignore_void else torch.ones_like(truth, dtype=torch.bool)
    found = []
    for value in truth.unique().tolist():
        if value in (0, IGNORE):
            continue
        own = truth == value
        both = (large & own).sum((1, 2))
        either = ((large | own) & counted).sum((1, 2))
        found.append((both / either).max().item())
    return sum(found) / len(found) if found else None
