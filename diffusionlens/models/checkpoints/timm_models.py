"""Models by timm's name: with timm's weights (`timm:NAME`), or with those of a file (`FILE?timm=NAME`)."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from torch import nn

from diffusionlens.errors import InputError, in_short
from diffusionlens.models.backbone import Backbone, Origin
from diffusionlens.models.checkpoints.families import find_timm
from diffusionlens.models.checkpoints.hub import from_the_cache, why_unreachable
from diffusionlens.models.checkpoints.loading import fill, outline
from diffusionlens.models.checkpoints.normalization import given_normalization
from diffusionlens.models.checkpoints.weights_file import label_of, sha256
from diffusionlens.models.positions import PositionRule, refuse_uneven
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.variant import Variant, refuse_unknown, remember
from diffusionlens.spec import Spec, parse_size


def variant_for(spec: Spec) -> Variant:
    """What `timm:NAME[?img_size=HxW]` asks for, before its weights are.

    Raises:
        InputError: timm has no such model, it has no single grid of tokens, or not in that size.
    """
    return _variant(spec, spec.rest, "timm:")


def from_timm(spec: Spec, *, pretrained: bool, variant: Variant) -> Backbone:
    """`timm:NAME[?pretrained=false&img_size=HxW]`, with the `variant_for` it.

    Raises:
        InputError: its weights can't be had.
    """
    name = spec.rest
    unreachable = why_unreachable() if pretrained else None
    try:
        # Untrained weights are drawn from a fixed seed: the same command gives the same numbers.
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            nullcontext() if unreachable is None else from_the_cache(),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = timm.create_model(name, pretrained=pretrained, num_classes=0, **variant.options)
    except Exception as error:  # timm and the hub raise of every kind: no network, no weights of this name
        reason = in_short(error)
        if unreachable is not None:
            missing = isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled)
            reason = f"{unreachable}; {'its weights are not in the cache either' if missing else reason}"
        hint = f"; without a network use a weights file, or timm:{name}?pretrained=false for an untrained model"
        raise InputError(f"timm could not make '{name}' ({reason}){hint if pretrained else ''}") from None
    remember(model, variant)
    notes = () if pretrained else ("untrained: weights are random",)
    origin = Origin(spec.text, "timm", name, untrained=not pretrained, notes=notes)
    return backbone_of(spec.label or name, model, origin)


def from_file_of_timm(
    spec: Spec, path: Path, content: Mapping[Any, Any], branch: str | None, rule: PositionRule | None
) -> Backbone:
    """`FILE?timm=NAME`: weights under a timm model's names. What they do not say (normalisation, epsilon, activation) is
    timm's.

    Raises:
        InputError: timm has no such model, it has no single grid of tokens, or the weights are not its.
    """
    if "heads" in spec.query:
        raise InputError(f"?heads in '{spec.text}' does not apply: ?timm={spec.query['timm']} says it; leave it out")
    name = spec.query["timm"]
    variant = _variant(spec, name, "?timm=")
    own = outline(variant)
    if rule is not None and not isinstance(getattr(own, "pos_embed", None), nn.Parameter):
        raise InputError(f"?positions in '{spec.text}' does not apply: {name} has no position table; leave it out")
    found = find_timm(content, branch, own.state_dict(), str(path))
    model = fill(variant, found.state, str(path), "give the name of the right timm model and the whole checkpoint")
    config: Any = model.pretrained_cfg
    full_name = ".".join(filter(None, (config.get("architecture"), config.get("tag"))))
    given = given_normalization(spec)
    facts = "LayerNorm epsilon and activation" if given else "mean, std, LayerNorm epsilon and activation"
    origin = Origin(
        spec.text,
        f"timm {name}",
        variant.describe(),
        sha256(path),
        found.branch,
        found.epoch,
        dropped=tuple(found.dropped),
        notes=(f"{facts} are those of timm's {full_name}",),
    )
    return backbone_of(spec.label or label_of(path), model, origin, preprocessing=given, position_rule=rule or "timm")


def _variant(spec: Spec, name: str, prefix: str) -> Variant:
    """The timm model in the size of `?img_size`, looked at without weights or a network before either is asked for."""
    refuse_unknown(name, prefix)
    variant = Variant(timm=name)
    look = backbone_of(name, outline(variant), Origin(spec.text, "timm", name))
    if "img_size" not in spec.query:
        return variant
    size = parse_size(spec.query["img_size"], "?img_size")
    refuse_uneven(f"?img_size={spec.query['img_size']}", size, look.patch_size, name)
    sized = Variant(timm=name, options={"img_size": size})
    if backbone_of(name, outline(sized), Origin(spec.text, "timm", name)).native_size != size:
        raise InputError(f"?img_size in '{spec.text}': {name} has a size of its own; leave it out")
    return sized
