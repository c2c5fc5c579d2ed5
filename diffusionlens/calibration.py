"""Fitting a converted model's temperature: how sharp 1.5-entmax has to be to do what the softmax before it did.

One factor a layer multiplies the logits. It is folded into the query weights, so that nothing of the model changes but
numbers, and the result is saved and loaded like any other weights.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor, nn

from diffusionlens.attention import entmax15
from diffusionlens.attention.layers import attention_modules
from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.errors import InputError
from diffusionlens.models import Backbone
from diffusionlens.models.specialization import SpecializedLayer
from diffusionlens.models.variant import set_attention

Match = Literal["entropy", "output"]
"""entropy: the mean entropy of the rows. output: least squares of weights @ values."""

_ROWS = 64  # queries kept of every head and picture: the mean over thousands of rows moves by far less than a percent
_LOWEST, _HIGHEST = 1 / 64, 64.0


_BIAS_TABLE = "relative_position_bias_table"


def calibrate(
    backbone: Backbone, images: Tensor | Iterable[Tensor], match: Match = "entropy", seed: int = 0
) -> list[float]:
    """Multiplies the logits of every layer of an entmax model so that it attends as it did with softmax, in place.

    The logits are those of the softmax model: what earlier layers change by being converted is not followed up.

    Args:
        backbone: a model after `convert(backbone, "entmax15")`.
        images: pictures [B,3,H,W] of its present size, normalised, or several batches of them; some dozens will do.
        match: see `Match`.
        seed: of the sample of queries.

    Returns:
        The factor of every layer, 1 to depth.

    Raises:
        InputError: not an entmax15 model, no pictures, or its queries can't be scaled.
    """
    if match not in get_args(Match):
        raise InputError(f"match='{match}' does not exist; wanted one of {', '.join(get_args(Match))}")
    if backbone.origin.attention != "entmax15":
        raise InputError(f"{backbone.label} has {backbone.origin.attention} attention; convert it to entmax15 first")
    modules = list(attention_modules(nn.ModuleList(backbone.blocks)))
    names = {module: name for name, module in backbone.model.named_modules()}
    if getattr(backbone.model, "rel_pos_bias", None) is not None:
        raise InputError(
            f"{backbone.label} adds one table of positions to the scores of all layers, which can't be scaled layer by layer; "
            f"measure it without calibration"
        )
    for module in modules:
        _query_parameters(module)  # refuses before anything is changed
    samples = _sample(backbone, [images] if isinstance(images, Tensor) else images, seed)
    fit = _same_entropy if match == "entropy" else _nearest_output
    factors = [fit(samples[layer]) for layer in range(1, backbone.depth + 1)]
    with torch.no_grad():
        for module, factor in zip(modules, factors, strict=True):
            for parameter in _query_parameters(module):
                parameter.mul_(factor)
            if (
                getattr(module, _BIAS_TABLE, None) is not None
            ):  # BEiT's positions are added to the scores, and scale with them
                backbone.scale_table(f"{names[module]}.{_BIAS_TABLE}", factor)
    note = f"logits scaled layer by layer to the {match} that softmax had, by {min(factors):.3g} to {max(factors):.3g}"
    backbone.origin = replace(backbone.origin, notes=(*backbone.origin.notes, note))
    return factors


_Sample = list[tuple[Tensor, Tensor]]  # logits [h,r,N] and values [h,N,D] of one picture


def _sample(backbone: Backbone, batches: Iterable[Tensor], seed: int) -> dict[int, _Sample]:
    samples: dict[int, _Sample] = {layer: [] for layer in range(1, backbone.depth + 1)}
    generator = torch.Generator().manual_seed(seed)

    def keep(block: AttentionBlock) -> None:
        chosen = torch.randperm(block.logits.shape[2], generator=generator)[:_ROWS].to(block.logits.device)
        for logits, values in zip(block.logits[:, :, chosen], block.values, strict=True):
            samples[block.layer].append((logits.clone(), values.float().clone()))

    set_attention(backbone.model, "softmax")
    try:
        for images in batches:
            capture(backbone, images, [keep], layers=())
    finally:
        set_attention(backbone.model, "entmax15")
    if not samples[1]:
        raise InputError("calibration got no pictures; wanted some dozens, as [B,3,H,W]")
    return samples


def _entropy(weights: Tensor) -> float:
    return float(torch.special.entr(weights).sum(-1).mean())


def _same_entropy(sample: _Sample) -> float:
    logits = torch.cat([logits.flatten(0, 1) for logits, _ in sample])
    target = _entropy(logits.softmax(-1))

    def difference(factor: float) -> float:
        return _entropy(entmax15(logits * factor)) - target

    # The entropy falls as the factor rises; rows of equal logits have one entropy for all, and are left alone.
    if difference(_LOWEST) <= 0:
        return 1.0 if abs(difference(1.0)) < 1e-4 else _LOWEST
    return float(brentq(difference, _LOWEST, _HIGHEST, xtol=1e-4)) if difference(_HIGHEST) < 0 else _HIGHEST


def _nearest_output(sample: _Sample) -> float:
    wanted = [logits.softmax(-1) @ values for logits, values in sample]

    def error(power: float) -> float:
        made = (entmax15(logits * 2**power) @ values for logits, values in sample)
        return sum(float((ours - theirs).square().sum()) for ours, theirs in zip(made, wanted, strict=True))

    # Not convex: a coarse look first, then the valley around its best place.
    best = min((step / 2 for step in range(-8, 9)), key=error)
    return float(
        2 ** minimize_scalar(error, bounds=(best - 0.5, best + 0.5), method="bounded", options={"xatol": 1e-3}).x
    )


def _query_parameters(module: Any) -> list[Tensor]:
    """Views of all parameters in which the queries are linear: multiplying them multiplies the logits."""
    norm = getattr(module, "q_norm", None)
    if norm is not None and not isinstance(norm, nn.Identity):
        found = [parameter for parameter in (norm.weight, getattr(norm, "bias", None)) if parameter is not None]
    else:
        fused: Any = getattr(module, "qkv", None)
        layers: list[Any] = [fused.cls, fused.patch] if isinstance(fused, SpecializedLayer) else [fused]
        alone = getattr(module, "q_proj", None)
        if fused is not None:
            found = [
                part[: part.shape[0] // 3]
                for layer in layers
                for part in (layer.weight, layer.bias)
                if part is not None
            ]
        elif alone is not None:
            found = [part for part in (alone.weight, alone.bias) if part is not None]
        else:
            raise InputError(
                f"the queries of {type(module).__name__} can't be scaled; calibration is for plain attention layers"
            )
        found += [module.q_bias] if getattr(module, "q_bias", None) is not None else []
    return [parameter.data for parameter in found]
