"""`load_model`: a MODEL string to a Backbone. What its options say is checked first, of all models before any is opened."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import timm

from diffusionlens.errors import InputError, some
from diffusionlens.models.architecture import Architecture, read_architecture
from diffusionlens.models.backbone import Backbone, Origin, Preprocessing
from diffusionlens.models.checkpoints.families import Weights, find_backbone
from diffusionlens.models.checkpoints.loading import fill
from diffusionlens.models.checkpoints.normalization import given_normalization
from diffusionlens.models.checkpoints.own_format import read_description
from diffusionlens.models.checkpoints.own_models import (
    from_checkpoint,
    from_description,
    from_run,
    is_checkpoint,
    run_of,
)
from diffusionlens.models.checkpoints.query import choice, flag, heads_of, refuse_options
from diffusionlens.models.checkpoints.shipped import find_shipped
from diffusionlens.models.checkpoints.timm_models import from_file_of_timm, from_timm, variant_for
from diffusionlens.models.checkpoints.unwrap import BRANCHES
from diffusionlens.models.checkpoints.weights_file import (
    SUFFIXES,
    begins_like_weights,
    label_of,
    read_weights,
    refuse_missing,
    sha256,
)
from diffusionlens.models.convert import convert
from diffusionlens.models.positions import POSITION_RULES
from diffusionlens.models.run_directory import find_checkpoint, find_weights
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.variant import AttentionName, Variant
from diffusionlens.spec import Spec, check_query, expand_path, parse_size, parse_spec

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
_RUN_QUERY = _OWN_QUERY | {"branch": _FILE_QUERY["branch"]}
_SAID_BY_OURS = sorted(set(_FILE_QUERY) - set(_OWN_QUERY))


def load_model(text: str) -> Backbone:
    """Opens `[label=]timm:NAME`, `[label=]shipped:NAME`, `[label=]FILE` or `[label=]RUN[@epoch=N]`, ready to measure.

    Args:
        text: MODEL as on the command line; see the user guide for its forms and options.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    return prepare_model(text)()


def load_models(given: Sequence[str | Backbone]) -> list[Backbone]:
    """As `load_model`, for several; what is open already is taken as it is.

    Raises:
        InputError: as `load_model`. What the options of one say wrong is told before the first is opened.
    """
    return [open_it() for open_it in prepare_models(given)]


def prepare_models(given: Sequence[str | Backbone]) -> list[Callable[[], Backbone]]:
    """`prepare_model` of every one."""
    return [prepare_model(one) if isinstance(one, str) else partial(_itself, one) for one in given]


def _itself(backbone: Backbone) -> Backbone:
    return backbone


def prepare_model(text: str) -> Callable[[], Backbone]:
    """Checks what a MODEL string says, without reading weights or asking a network for them.

    Returns:
        What opens it.

    Raises:
        InputError: no such kind of model, no such file, or an option that is unknown or of another form.
    """
    spec = parse_spec(text, "MODEL", "[label=]timm:NAME, shipped:NAME, a weights file or a RUN")
    opening = _prepared(spec)
    attention = choice(spec, "attention", get_args(AttentionName))
    return opening if attention is None else lambda: convert(opening(), attention)  # type: ignore[arg-type]


def _prepared(spec: Spec) -> Callable[[], Backbone]:
    if spec.kind == "timm":
        check_query(spec, _TIMM_QUERY)
        return partial(from_timm, spec, pretrained=flag(spec, "pretrained", default=True), variant=variant_for(spec))
    if spec.kind == "shipped":
        return _prepared_file(spec, find_shipped(spec.rest))
    if spec.kind:
        raise InputError(
            f"'{spec.kind}:' in '{spec.text}' is no kind of model; wanted timm:NAME, shipped:NAME or a weights file"
        )
    path = expand_path(spec.rest)
    try:
        run, is_folder = run_of(spec), path.is_dir()
        there = sorted(entry.name for entry in path.iterdir() if entry.suffix in SUFFIXES) if is_folder else []
    except OSError as error:  # a name too long for the system, or a folder that may not be entered
        raise InputError(f"'{spec.rest}' can't be looked at ({error.strerror}); wanted a weights file") from None
    if run is not None:
        check_query(spec, _RUN_QUERY)
        choice(spec, "positions", POSITION_RULES)
        student = choice(spec, "branch", BRANCHES) == "student"
        (find_checkpoint if student else find_weights)(*run)
        return partial(from_run, spec, *run)
    if is_folder:
        near = f"; it holds {some(there)}" if there else ""
        raise InputError(
            f"{path} is a folder, and no training run; wanted a weights file ({', '.join(SUFFIXES)}) or timm:NAME{near}"
        )
    if path.suffix not in SUFFIXES and not begins_like_weights(path):
        near = f"; did you mean timm:{spec.rest}?" if timm.is_model(spec.rest) else ""
        raise InputError(f"'{spec.rest}' is not a weights file ({', '.join(SUFFIXES)}) or timm:NAME{near}")
    return _prepared_file(spec, path)


def _prepared_file(spec: Spec, path: Path) -> Callable[[], Backbone]:
    check_query(spec, _FILE_QUERY)
    choice(spec, "branch", BRANCHES)
    choice(spec, "positions", POSITION_RULES)
    heads = heads_of(spec)
    size = parse_size(spec.query["img_size"], "?img_size") if "img_size" in spec.query else None
    given = given_normalization(spec)
    refuse_missing(path)
    return partial(_from_file, spec, path, heads, size, given)


def _from_file(
    spec: Spec, path: Path, heads: int | None, size: tuple[int, int] | None, given: Preprocessing | None
) -> Backbone:
    branch, rule = spec.query.get("branch"), spec.query.get("positions")
    content, metadata = read_weights(path, mapped=True)
    description = read_description(metadata, str(path))
    if description is not None:
        refuse_options(spec, _SAID_BY_OURS, "the file is diffusionlens' own and says it itself")
        return from_description(spec, path, content, description)
    if is_checkpoint(content):
        refuse_options(spec, [key for key in _SAID_BY_OURS if key != "branch"], "the run says it itself")
        return from_checkpoint(spec, path, content)
    if "timm" in spec.query:
        return from_file_of_timm(spec, path, content, branch, rule)  # type: ignore[arg-type]
    found = find_backbone(content, branch, str(path))
    if found.rotary:
        refuse_options(spec, ("positions", "img_size"), f"{found.family} has no position table")
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
        spec.label or label_of(path),
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
