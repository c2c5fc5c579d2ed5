"""`load_model`: a MODEL string to a Backbone."""

import warnings
from difflib import get_close_matches
from pathlib import Path

import timm
import torch

from diffusionlens.errors import InputError
from diffusionlens.models.architecture import load_state, read_architecture
from diffusionlens.models.backbone import Backbone, Origin, Preprocessing
from diffusionlens.models.convert import convert
from diffusionlens.models.families import BRANCHES, find_backbone
from diffusionlens.models.own_format import Description, read_description
from diffusionlens.models.positions import POSITION_RULES
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.variant import Variant, remember
from diffusionlens.models.weights_file import SUFFIXES, read_weights, sha256
from diffusionlens.spec import Spec, check_query, parse_size, parse_spec

_IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

_ATTENTION = {"attention": "softmax, entmax15 or sparsemax, in place of the model's own"}
_TIMM_QUERY = {"pretrained": "true or false", "img_size": "N or HxW"} | _ATTENTION
_FILE_QUERY = {
    "heads": "number of heads",
    "branch": "teacher or student",
    "positions": "rule by which positions are resized",
    "img_size": "HxW of the position table",
} | _ATTENTION


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
    path = Path(spec.rest)
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
    found = find_backbone(content, branch, str(path))
    heads = int(spec.query["heads"]) if spec.query.get("heads", "").isdigit() else None
    if "heads" in spec.query and not heads:
        raise InputError(f"?heads={spec.query['heads']} in '{spec.text}'; wanted a whole number, as ?heads=6")
    size = parse_size(spec.query["img_size"]) if "img_size" in spec.query else None
    architecture, notes = read_architecture(found.state, heads, size, found.rotary, str(path))
    model = Variant(architecture=architecture).build()
    load_state(model, found.state, str(path))
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
        preprocessing=_HALF if found.half_mean else _IMAGENET,
        position_rule=rule or found.rule,  # type: ignore[arg-type]
    )


def _from_description(spec: Spec, path: Path, state: dict[str, object], description: Description) -> Backbone:
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
