"""`spread`: how far the exchange of an object is felt in patches that it does not touch."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from diffusionlens.analysis.diffusion.swap import main_box
from diffusionlens.capture import Stream, Trace
from diffusionlens.data.sample import Sample, UnreadablePicture

_TRIES = 10  # other pictures opened in search of one with an object of another label


def find_donor(
    sample: Sample, indices: Sequence[int], picture: Callable[[int], Sample], seed: int
) -> tuple[Sample, Tensor] | None:
    """Another of the pictures, with an object and (where both are known) of another label, and that object's box.

    Drawn by (seed, the picture's own index) alone, so that batches and processes change nothing. None when `_TRIES` draws
    gave none.
    """
    others = np.array(indices)[np.array(indices) != sample.index]
    rng = np.random.default_rng((seed, sample.index))
    for index in rng.permutation(others)[:_TRIES].tolist():
        try:
            donor = picture(index)
        except UnreadablePicture:
            continue
        box = main_box(donor)
        if box is None:
            continue
        if sample.label is None or donor.label is None or donor.label != sample.label:
            return donor, box
    return None


def responses(trace: Trace, changed: Trace, layer: int, places: Sequence[int], stream: Stream) -> Tensor:
    """1 - cosine of every patch with itself in the changed picture, [b,h,w]; exactly 0 where nothing changed.

    Computed as half the squared distance of the unit tokens, which keeps small responses that 1 - cos would round away.
    """
    before = trace.unit_tokens(layer, stream).patches[list(places)]
    after = changed.unit_tokens(layer, stream).patches
    return (before - after).square().sum(-1) / 2


def ring_means(response: Tensor, masks: Tensor) -> Tensor:
    """Mean response of each ring's patches, [b,R]; NaN for a ring without patches.

    Args:
        response: [b,h,w].
        masks: bool [b,R,h,w].
    """
    weight = masks.flatten(2).to(response.dtype)
    total = (weight @ response.flatten(1)[:, :, None]).squeeze(-1)
    count = weight.sum(-1)
    return torch.where(count > 0, total / count, torch.nan)
