"""Models of our own: files with a description of themselves, and the networks of training runs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Backbone, Origin
from diffusionlens.models.checkpoints.loading import fill
from diffusionlens.models.checkpoints.own_format import Description, read_description
from diffusionlens.models.checkpoints.query import choice, refuse_options
from diffusionlens.models.checkpoints.unwrap import BRANCHES
from diffusionlens.models.checkpoints.weights_file import label_of, read_weights, sha256
from diffusionlens.models.positions import POSITION_RULES
from diffusionlens.models.run_directory import (
    CHECKPOINTS,
    TEACHER,
    find_checkpoint,
    find_weights,
    is_run,
    list_weights,
    steps_per_epoch,
)
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.spec import Spec, expand_path, parse_spec

_MOMENT = re.compile(r"(?P<run>.+)@(?P<at>(?:epoch|step)\b.*)", re.DOTALL)
_BACKBONE = "backbone."  # beside it stands DINO's head
_DAMAGED = "the file is damaged; write it again"


def from_description(spec: Spec, path: Path, state: Mapping[str, Any], description: Description) -> Backbone:
    """A file of ours, whose metadata say what to build.

    Raises:
        InputError: the weights are not those of the model that is described, or an option of `spec` says it otherwise.
    """
    return _backbone(spec, path, fill(description, state, str(path), _DAMAGED), description)


def _backbone(spec: Spec, path: Path, model: nn.Module, description: Description, **facts: Any) -> Backbone:
    if not isinstance(getattr(model, "pos_embed", None), nn.Parameter):
        refuse_options(spec, ("positions",), "the model has no position table")
    origin = Origin(
        spec.text,
        "diffusionlens",
        description.describe(),
        sha256(path),
        epoch=description.epoch,
        step=description.step,
        untrained=description.step == 0 and description.recipe.get("init_from") is None,
        recipe=description.recipe,
        **facts,
    )
    rule = choice(spec, "positions", POSITION_RULES) or description.position_rule
    return backbone_of(
        spec.label or label_of(path),
        model,
        origin,
        preprocessing=description.preprocessing,
        position_rule=rule,  # type: ignore[arg-type]
    )


def _own(path: Path) -> tuple[Mapping[Any, Any], Description]:
    state, metadata = read_weights(path, mapped=True)
    description = read_description(metadata, str(path))
    if description is None:
        raise InputError(f"{path} lies where a run keeps its own files, and is none; it is damaged")
    return state, description


def run_of(spec: Spec) -> tuple[Path, str | None] | None:
    """The training run that a MODEL means, and the moment behind its @; None for a MODEL that is no run.

    Raises:
        InputError: a moment is given, and what stands before it is no run.
    """
    if spec.kind:
        return None
    path = expand_path(spec.rest)
    if is_run(path):
        return path, None
    found = _MOMENT.fullmatch(spec.rest)
    if found is None or path.exists():
        return None
    run = expand_path(found["run"])
    if not is_run(run):
        state = "is no training run" if run.exists() else "does not exist"
        raise InputError(f"{run} {state}; wanted RUN@{found['at']}, with RUN a folder that `diffusionlens train` made")
    return run, found["at"]


def from_run(spec: Spec, run: Path, at: str | None) -> Backbone:
    """`RUN`, `RUN@epoch=10` or `RUN@step=400`: the teacher, or with `?branch=student` the student.

    Raises:
        InputError: the run has no such checkpoint (says which it has), or it is damaged.
    """
    label = spec.label or (run.resolve().name if at is None else f"{run.resolve().name}@{at}")
    spec = replace(spec, label=label)
    if choice(spec, "branch", BRANCHES) == "student":
        path = find_checkpoint(run, at)
        return from_checkpoint(spec, path, read_weights(path, mapped=True)[0])
    path = find_weights(run, at)
    state, description = _own(path)
    return _backbone(spec, path, fill(description, state, str(path), _DAMAGED), description, branch="teacher")


def is_checkpoint(content: Mapping[Any, Any]) -> bool:
    """Whether this is the content of RUN/checkpoints/*.pt."""
    return {"format", "recipe", "student", "teacher", "optimizer", "ranks"} <= set(content)


def from_checkpoint(spec: Spec, path: Path, content: Mapping[Any, Any]) -> Backbone:
    """RUN/checkpoints/NAME.pt: the teacher, or with `?branch=student` the student. What to build stands in the teacher's own
    file of the run, which is of the same architecture.

    Raises:
        InputError: the file lies outside its run, or is damaged.
    """
    run = path.absolute().parent.parent
    if not is_run(run) or path.absolute().parent.name != CHECKPOINTS:
        raise InputError(
            f"{path} is a checkpoint of `diffusionlens train` outside its run, and does not say alone what to build; give RUN, "
            f"or a file of RUN/{TEACHER}"
        )
    _, description = _own(find_weights(run))
    branch = choice(spec, "branch", BRANCHES) or BRANCHES[0]
    network = content.get(branch)
    if not isinstance(network, Mapping):
        raise InputError(f"{path} holds no {branch}; it is damaged, or of another program")
    state = {key[len(_BACKBONE) :]: value for key, value in network.items() if str(key).startswith(_BACKBONE)}
    model = fill(description, state, str(path), _DAMAGED)
    step = content.get("step")
    if not isinstance(step, int):
        raise InputError(f"{path} does not say its step; it is damaged, or of another program")
    described = description.model_copy(update={"step": step, "epoch": step // steps_per_epoch(run)})
    dropped = tuple((str(key), "training state") for key in content if key != branch)
    return _backbone(spec, path, model, described, branch=branch, dropped=dropped)


def list_moments(text: str) -> list[str]:
    """The numbered checkpoints of the run that a MODEL string means, as `epoch=10` and `step=400`; none for other models."""
    found = run_of(parse_spec(text))
    return [] if found is None else [weights.name for weights in list_weights(found[0])]
