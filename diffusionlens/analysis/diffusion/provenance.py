"""`provenance`: from which pixels a patch has its likeness to the image token. Attribution by Captum."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from diffusionlens.analysis.diffusion.erase import blur, boxed_pixels
from diffusionlens.capture import Stream
from diffusionlens.data.sample import Sample
from diffusionlens.models.backbone import Backbone

Method = Literal["integrated_gradients", "input_x_gradient", "none"]

REGIONS = ("self", "object", "rest")
_AT_A_TIME = 8  # pictures per backward pass, so that memory does not depend on the number of steps
_BASELINE_BLUR = 16  # the baseline's Gaussian is the picture's shorter side over this


@dataclass(frozen=True)
class Attribution:
    """`pixels` float32 [H,W] sums |attribution| over the channels; `gap` is |sum of attributions - change of the score|
    and `change` |score of the picture - score of the baseline|, both NaN for Input x Gradient; `passes` counts pictures
    sent through the model."""

    pixels: Tensor
    gap: float
    change: float
    passes: int


def attribute(
    backbone: Backbone,
    image: Tensor,
    layer: int,
    patch: tuple[int, int],
    target: Tensor,
    stream: Stream,
    method: Method,
    steps: int,
) -> Attribution:
    """Attribution of cos(patch of `layer`, `target`) to the pixels of `image`.

    The target is the image token of the picture itself and stays fixed, also along the path from the baseline (the blurred
    picture), so that Integrated Gradients is complete for a function of the pixels alone.

    Args:
        image: [3,H,W], normalised.
        patch: row and column.
        target: [D].
        steps: Gauss-Legendre points on the path; for Input x Gradient unused.
    """
    from captum.attr import InputXGradient, IntegratedGradients  # half a second that no other analysis should wait for

    device = next(backbone.model.parameters()).device
    with torch.inference_mode(False), torch.enable_grad(), _last_tokens(backbone, layer) as tokens_of:
        aim = functional.normalize(target.detach().clone().float().to(device), dim=0)
        own = image.detach().clone().to(device)[None]

        def score(images: Tensor) -> Tensor:
            tokens = tokens_of(images).float()
            tokens = backbone.normed(tokens) if stream == "normed" else tokens
            patches = backbone.split(tokens).patches
            return functional.normalize(patches[:, patch[0], patch[1]], dim=-1) @ aim

        if method == "input_x_gradient":
            found = InputXGradient(score).attribute(own.requires_grad_())
            return Attribution(_per_pixel(found), np.nan, np.nan, 1)
        baseline = blur(image.detach().clone(), min(image.shape[1:]) / _BASELINE_BLUR).to(device)[None]
        found = IntegratedGradients(score).attribute(own, baseline, n_steps=steps, internal_batch_size=_AT_A_TIME)
        with torch.no_grad():
            change = (score(own) - score(baseline)).double().item()
        gap = abs(found.double().sum().item() - change)
        return Attribution(_per_pixel(found), gap, abs(change), steps + 2)


def _per_pixel(attribution: Tensor) -> Tensor:
    return attribution.detach()[0].abs().sum(0).float().cpu()


class _ReachedError(Exception):
    """The wanted block has run; what comes after it is not needed."""


@contextmanager
def _last_tokens(backbone: Backbone, layer: int) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from pictures to the raw tokens of `layer`, with gradients; no block after it runs. The hook is gone
    afterwards, also after an error."""
    seen: list[Tensor] = []

    def after(_: nn.Module, __: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)
        raise _ReachedError

    def before(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen.append(args[0])
        raise _ReachedError

    block = backbone.blocks[max(layer, 1) - 1]
    handle = block.register_forward_hook(after) if layer else block.register_forward_pre_hook(before)

    def tokens_of(images: Tensor) -> Tensor:
        seen.clear()
        with suppress(_ReachedError):
            backbone.model.forward_features(images)  # type: ignore[operator]
        return seen[0]

    try:
        yield tokens_of
    finally:
        handle.remove()


def regions(sample: Sample, patch: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Where a pixel lies as seen from a patch (row, column), bool [3,H,W] in the order of `REGIONS`: self is the patch and
    one patch around it, object any box outside of that, rest everything else."""
    height, width = sample.image.shape[1:]
    near = torch.zeros(height, width, dtype=torch.bool)
    rows, columns = (
        slice(max(place - 1, 0) * side, (place + 2) * side) for place, side in zip(patch, size, strict=True)
    )
    near[rows, columns] = True
    boxed = boxed_pixels(sample.boxes, (height, width)) & ~near
    return torch.stack([near, boxed, ~near & ~boxed])


def shares(pixels: Tensor, where: Tensor) -> Tensor:
    """Share of the attribution in each region, [3]; NaN when there is no attribution at all."""
    sums = (where * pixels.double()).sum((1, 2))
    return sums / sums.sum() if sums.sum() > 0 else torch.full_like(sums, torch.nan)


def chosen_patches(candidates: Tensor, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """At most `count` of the patches that are True in `candidates` [h,w]."""
    places: NDArray[np.int64] = np.argwhere(candidates.numpy())
    drawn = rng.permutation(len(places))[:count]
    return [(int(row), int(column)) for row, column in places[drawn]]
