"""`load_model`: a MODEL string to a Backbone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models.architecture import Architecture, read_architecture
from diffusionlens.models.backbone import Backbone, Origin
from diffusionlens.models.convert import convert
from diffusionlens.models.families import Weights, find_backbone
from diffusionlens.models.loading import fill
from diffusionlens.models.normalization import given_normalization
from diffusionlens.models.own_format import Description, read_description
from diffusionlens.models.positions import POSITION_RULES
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.timm_models import from_file_of_timm, from_timm
from diffusionlens.models.unwrap import BRANCHES
from diffusionlens.models.variant import Variant
from diffusionlens.models.weights_file import SUFFIXES, read_weights, sha256
from diffusionlens.spec import Spec, check_query, expand_path, is_whole, parse_size, parse_spec

_ATTENTION = {"attention": "softmax, entmax15 or sparsemax, in place of the model's own"}
_TIMM_QUERY = {"pretrained": "true or false", "img_size": "N or HxW"} | _ATTENTION
_OWN_QUERY = {"positions": "rule by which positions are resized"} | _ATTENTION
_FILE_QUERY = _OWN_QUERY | {
    "heads": "number of heads",
    "branch": "teacher or student",
    "img_size": "HxW of the position table",
    "timm": "name of the timm model that the file is of",
    "normalize": "imagenet, half or clip: mean and std of the pictures",
    "mean": "R,G,B, or imagenet, half or clip",
    "std": "R,G,B, or imagenet, half or clip",
}


def load_model(text: str) -> Backbone:
    """Opens `[label=]timm:NAME` or `[label=]FILE`, ready to measure.

    Args:
        text: MODEL as on the command line; see the user guide for its forms and options.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    spec = parse_spec(text)
    backbone = _open(spec)
    attention = spec.query.get("attention")
    return backbone if attention is None else convert(backbone, attention)  # type: ignore[arg-type]


def _open(spec: Spec) -> Backbone:
    if spec.kind == "timm":
        check_query(spec, _TIMM_QUERY)
        return from_timm(spec, pretrained=_flag(spec, "pretrained", default=True))
    if spec.kind:
        raise InputError(f"'{spec.kind}:' in '{spec.text}' is no kind of model; wanted timm:NAME or a weights file")
    path = expand_path(spec.rest)
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name too long for the system, or a folder that may not be entered
        raise InputError(f"'{spec.rest}' can't be looked at ({error.strerror}); wanted a weights file") from None
    if is_folder:
        raise InputError(f"{path} is a folder; wanted a weights file ({', '.join(SUFFIXES)}) or timm:NAME")
    if path.suffix not in SUFFIXES:
        near = f"; did you mean timm:{spec.rest}?" if timm.is_model(spec.rest) else ""
        raise InputError(f"'{spec.rest}' is not a weights file ({', '.join(SUFFIXES)}) or timm:NAME{near}")
    return _from_file(spec, path)


def _from_file(spec: Spec, path: Path) -> Backbone:
    check_query(spec, _FILE_QUERY)
    branch, rule, heads = _choice(spec, "branch", BRANCHES), _choice(spec, "positions", POSITION_RULES), _heads(spec)
    size = parse_size(spec.query["img_size"]) if "img_size" in spec.query else None
    given = given_normalization(spec)
    content, metadata = read_weights(path, mapped=True)
    description = read_description(metadata, str(path))
    if description is not None:
        return _from_description(spec, path, content, description)
    if "timm" in spec.query:
        return from_file_of_timm(spec, path, content, branch, rule)  # type: ignore[arg-type]
    found = find_backbone(content, branch, str(path))
    if found.rotary:
        _refuse_options(spec, ("positions", "img_size"), f"{found.family} has no position table")
    way_out = "give the whole checkpoint"
    if "timm" in found.family:
        way_out += ", or, for another timm model than a plain ViT, say which: ?timm=NAME"
    architecture, notes = read_architecture(
        found.state, heads, size, rotary=found.rotary, epsilon=found.epsilon, way_out=way_out, file=str(path)
    )
    model = fill(Variant(architecture=architecture), found.state, str(path), way_out)
    notes.append(_assumed(found, architecture, given is not None))
    if found.family == "DINO or timm" and rule is None:
        notes.append("positions are resized by DINO's rule; for a file of timm's own say ?positions=timm")
    origin = Origin(
        spec.text,
        found.family,
        architecture.describe(),
        sha256(path),
        found.branch,
        found.epoch,
        dropped=tuple(found.dropped),
        notes=tuple(notes),
    )
    return backbone_of(
        spec.label or path.stem,
        model,
        origin,
        preprocessing=given or found.preprocessing,
        position_rule=rule or found.rule,  # type: ignore[arg-type]
    )


def _assumed(found: Weights, architecture: Architecture, normalization_given: bool) -> str:
    """What weights do not say and makes other numbers of the same weights."""
    activation = "SwiGLU" if architecture.swiglu else "GELU"
    facts = [f"LayerNorm epsilon {architecture.norm_epsilon:g}", f"activation {activation}"]
    if not normalization_given:
        mean, std = (
            ",".join(f"{x:.3g}" for x in values) for values in (found.preprocessing.mean, found.preprocessing.std)
        )
        facts = [f"mean {mean} and std {std} of the pictures", *facts]
    return (
        f"assumed, as the file does not say: {', '.join(facts)}; if that is wrong, say ?timm=NAME for a file of a timm model, "
        f"or ?normalize=imagenet, half or clip"
    )


def _from_description(spec: Spec, path: Path, state: Mapping[str, Any], description: Description) -> Backbone:
    _refuse_options(
        spec, sorted(set(_FILE_QUERY) - set(_OWN_QUERY)), "the file is diffusionlens' own and says it itself"
    )
    model = fill(description, state, str(path), "the file is damaged; write it again")
    if not isinstance(getattr(model, "pos_embed", None), nn.Parameter):
        _refuse_options(spec, ("positions",), "the model has no position table")
    origin = Origin(
        spec.text,
        "diffusionlens",
        description.describe(),
        sha256(path),
        epoch=description.epoch,
    )
    rule = spec.query.get("positions", description.position_rule)
    return backbone_of(
        spec.label or path.stem,
        model,
        origin,
        preprocessing=description.preprocessing,
        position_rule=rule,  # type: ignore[arg-type]
    )


def _refuse_options(spec: Spec, keys: Sequence[str], why: str) -> None:
    for key in keys:
        if key in spec.query:
            raise InputError(f"?{key} in '{spec.text}' does not apply: {why}; leave it out")


def _choice(spec: Spec, key: str, known: tuple[str, ...]) -> str | None:
    value = spec.query.get(key)
    if value is not None and value not in known:
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted one of {', '.join(known)}")
    return value


def _heads(spec: Spec) -> int | None:
    text = spec.query.get("heads")
    if text is None:
        return None
    if not is_whole(text) or int(text) == 0:
        raise InputError(f"?heads={text} in '{spec.text}'; wanted a whole number, as ?heads=6")
    return int(text)


def _flag(spec: Spec, key: str, *, default: bool) -> bool:
    value = spec.query.get(key)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted true or false")
    return value.lower() == "true"
