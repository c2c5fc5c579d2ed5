"""`load_model`: a MODEL string to a Backbone."""

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch

from diffusionlens.errors import InputError
from diffusionlens.models.architecture import load_state, read_architecture
from diffusionlens.models.backbone import Backbone, Origin, Preprocessing
from diffusionlens.models.convert import convert
from diffusionlens.models.families import BRANCHES, find_backbone, find_timm
from diffusionlens.models.own_format import Description, read_description
from diffusionlens.models.positions import POSITION_RULES
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.variant import Variant, remember
from diffusionlens.models.weights_file import SUFFIXES, read_weights, sha256
from diffusionlens.spec import Spec, check_query, is_whole, parse_size, parse_spec

_IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = Preprocessing((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_NORMALIZATIONS = {"imagenet": _IMAGENET, "half": _HALF, "clip": _CLIP}

_ATTENTION = {"attention": "softmax, entmax15 or sparsemax, in place of the model's own"}
_TIMM_QUERY = {"pretrained": "true or false", "img_size": "N or HxW"} | _ATTENTION
_FILE_QUERY = {
    "heads": "number of heads",
    "branch": "teacher or student",
    "positions": "rule by which positions are resized",
    "img_size": "HxW of the position table",
    "timm": "name of the timm model that the file is of",
    "normalize": "imagenet, half or clip: mean and std of the pictures",
} | _ATTENTION
_OWN_QUERY = {key: _FILE_QUERY[key] for key in ("positions", "attention")}


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
    text = spec.text
    if spec.kind == "timm":
        return _from_timm(spec)
    if spec.kind:
        raise InputError(f"'{spec.kind}:' in '{text}' is no kind of model; wanted timm:NAME or a weights file")
    path = Path(spec.rest).expanduser()
    if path.is_dir():
        raise InputError(f"{path} is a folder; wanted a weights file ({', '.join(SUFFIXES)}) or timm:NAME")
    if path.suffix not in SUFFIXES:
        near = f"; did you mean timm:{spec.rest}?" if timm.is_model(spec.rest) else ""
        raise InputError(f"'{spec.rest}' is not a weights file ({', '.join(SUFFIXES)}) or timm:NAME{near}")
    return _from_file(spec, path)


def _from_timm(spec: Spec) -> Backbone:
    check_query(spec, _TIMM_QUERY)
    name = spec.rest
    base = name.split(".")[0]
    if not timm.is_model(base):
        near = get_close_matches(base, timm.list_models(), n=1)
        raise InputError(f"timm has no model '{name}'" + (f"; did you mean timm:{near[0]}?" if near else ""))
    pretrained = _flag(spec, "pretrained", default=True)
    options = {"img_size": parse_size(spec.query["img_size"])} if "img_size" in spec.query else {}
    _check_architecture(spec, name, options)
    try:
        # Untrained weights are drawn from a fixed seed: the same command gives the same numbers.
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    except Exception as error:  # timm and the hub raise of every kind: no network, unknown tag, refused option
        reason = " ".join(str(error).split())[:160]
        hint = f"; without a network use a weights file, or timm:{name}?pretrained=false for an untrained model"
        raise InputError(f"timm could not make '{name}' ({reason}){hint if pretrained else ''}") from None
    remember(model, Variant(timm=name, options=options))
    notes = () if pretrained else ("untrained: weights are random",)
    origin = Origin(spec.text, "timm", name, untrained=not pretrained, notes=notes)
    return backbone_of(spec.label or name, model, origin)


def _from_file(spec: Spec, path: Path) -> Backbone:
    check_query(spec, _FILE_QUERY)
    branch = spec.query.get("branch")
    if branch is not None and branch not in BRANCHES:
        raise InputError(f"?branch={branch} in '{spec.text}'; wanted one of {', '.join(BRANCHES)}")
    rule = spec.query.get("positions")
    if rule is not None and rule not in POSITION_RULES:
        raise InputError(f"?positions={rule} in '{spec.text}'; wanted one of {', '.join(POSITION_RULES)}")
    content, metadata = read_weights(path)
    description = read_description(metadata, str(path))
    if description is not None:
        return _from_description(spec, path, dict(content), description)
    if "timm" in spec.query:
        return _from_file_of_timm(spec, path, content, branch)
    found = find_backbone(content, branch, str(path))
    heads = None
    if "heads" in spec.query:
        if not is_whole(spec.query["heads"]) or int(spec.query["heads"]) == 0:
            raise InputError(f"?heads={spec.query['heads']} in '{spec.text}'; wanted a whole number, as ?heads=6")
        heads = int(spec.query["heads"])
    size = parse_size(spec.query["img_size"]) if "img_size" in spec.query else None
    architecture, notes = read_architecture(found.state, heads, size, found.rotary, str(path))
    model = Variant(architecture=architecture).build()
    load_state(model, found.state, str(path))
    preprocessing = _HALF if found.half_mean else _CLIP if architecture.norm_before_blocks else _IMAGENET
    if "normalize" in spec.query:
        preprocessing = _normalization(spec)
    elif "timm" in found.family:
        notes.append(
            f"pictures are normalised by mean {preprocessing.mean}, std {preprocessing.std}, the activation is GELU: the file "
            f"does not say; for a file of timm's own add ?timm=NAME, or ?normalize=imagenet, half or clip"
        )
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
        preprocessing=preprocessing,
        position_rule=rule or found.rule,  # type: ignore[arg-type]
    )


def _from_file_of_timm(spec: Spec, path: Path, content: Mapping[str, Any], branch: str | None) -> Backbone:
    """A file under a timm model's names: what weights do not say (normalisation, epsilon, activation) comes from timm."""
    for key in ("heads", "positions"):
        if key in spec.query:
            raise InputError(f"?{key} in '{spec.text}' is of no use beside ?timm=, which says it; leave it out")
    name = spec.query["timm"]
    options = {"img_size": parse_size(spec.query["img_size"])} if "img_size" in spec.query else {}
    _check_architecture(spec, name, options)
    variant = Variant(timm=name, options=options)
    model = variant.build()
    found = find_timm(content, branch, set(model.state_dict()), str(path))
    load_state(model, found.state, str(path))
    origin = Origin(
        spec.text,
        f"timm {name}",
        variant.describe(),
        sha256(path),
        found.branch,
        found.epoch,
        dropped=tuple(found.dropped),
    )
    preprocessing = _normalization(spec) if "normalize" in spec.query else None
    return backbone_of(spec.label or path.stem, model, origin, preprocessing=preprocessing)


def _normalization(spec: Spec) -> Preprocessing:
    name = spec.query["normalize"]
    if name not in _NORMALIZATIONS:
        raise InputError(f"?normalize={name} in '{spec.text}'; wanted one of {', '.join(_NORMALIZATIONS)}")
    return _NORMALIZATIONS[name]


def _check_architecture(spec: Spec, name: str, options: dict[str, Any]) -> None:
    """Builds the model without memory, weights or a network, so that a refusal comes before any of them is spent."""
    with torch.device("meta"):
        model = Variant(timm=name, options=options).build()
    backbone = backbone_of(name, model, Origin(spec.text, "timm", name))
    if "img_size" in options and backbone.native_size != options["img_size"]:
        wanted, patch = options["img_size"], backbone.patch_size
        near = " or ".join(
            f"{n * patch[0]}x{n * patch[1]}" for n in (wanted[0] // patch[0], wanted[0] // patch[0] + 1) if n
        )
        raise InputError(
            f"?img_size={spec.query['img_size']} in '{spec.text}' is no multiple of the patch size {patch[0]}x{patch[1]}; for a "
            f"square picture use {near}"
        )


def _from_description(spec: Spec, path: Path, state: dict[str, object], description: Description) -> Backbone:
    check_query(spec, _OWN_QUERY)
    model = description.build()
    load_state(model, state, str(path))  # type: ignore[arg-type]
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


def _flag(spec: Spec, key: str, *, default: bool) -> bool:
    value = spec.query.get(key)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted true or false")
    return value.lower() == "true"
