"""Whether a checkpoint is what the run that goes on from it needs: looked at whole before anything is changed on the disk.

A file can be whole and its content not: written by something else, edited, or with bits that turned. Whatever training would
stumble over, or go on with wrongly without a word, is found here and named, with the way back.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffusionlens.errors import InputError, in_short, some
from diffusionlens.models.run_directory import LAST
from diffusionlens.training.checkpoints.checkpoint import load_checkpoint, random_fault
from diffusionlens.training.dino.optimizer import DECAYED
from diffusionlens.training.dino.step import Learner
from diffusionlens.training.recipe_files import recipe_from

Check = Callable[[dict[str, Any]], Iterator[str]]
"""What is wrong with a checkpoint's content, each in a few words."""


def read_whole(path: Path) -> dict[str, Any]:
    """A checkpoint whose plain values are what they should be; for the rest see `check_fits`.

    Raises:
        InputError: it can't be read, or what is wrong; and which earlier checkpoint of the same folder is whole.
    """
    try:
        content = load_checkpoint(path)
    except InputError as error:
        raise InputError(f"{error}; {_way_back(path, _plain_faults)}") from None
    _refuse(path, content, _plain_faults)
    return content


def check_fits(path: Path, content: dict[str, Any], learner: Learner, total: int) -> None:
    """Refuses a checkpoint with which a learner of the same recipe could not go on as if nothing had happened.

    Args:
        path: where `content` was read.
        total: steps of the run.

    Raises:
        InputError: as `read_whole`.
    """
    _refuse(path, content, lambda one: _faults(one, learner, total))


def _refuse(path: Path, content: dict[str, Any], check: Check) -> None:
    if fault := _first(content, check):
        raise InputError(f"{path} is damaged: {fault}; {_way_back(path, check)}")


def _first(content: dict[str, Any], check: Check) -> str:
    try:
        return next(check(content), "")
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:  # of what can't even be looked at
        return f"its content is of another kind ({in_short(error, 100)})"


def _way_back(path: Path, check: Check) -> str:
    found = []
    for other in path.parent.glob("*.pt"):
        try:
            if other.stem != LAST and not (path.exists() and other.samefile(path)):
                content = load_checkpoint(other)
                if not _first(content, check):
                    found.append((int(content["step"]), other))
        except (InputError, OSError):
            continue
    if not found:
        return f"no other whole checkpoint lies in {path.parent}: begin a new run, whose init_from may be one of RUN/teacher"
    step, other = max(found)
    return f"{other} (step {step}) is whole: copy it to {path} and say --resume again"


def _plain_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the plain values of a checkpoint."""
    step, ranks, states, data = (content[name] for name in ("step", "ranks", "random", "data"))
    if type(step) is not int or step < 0:
        yield f"its step is {in_short(repr(step), 60)}; wanted a whole number from 0"
    if type(ranks) is not int or ranks < 1:
        yield f"its number of ranks is {in_short(repr(ranks), 60)}; wanted a whole number from 1"
    if not isinstance(states, list) or len(states) != ranks:
        count = len(states) if isinstance(states, list) else "no list of"
        yield f"it holds {count} states of random generators for {in_short(repr(ranks), 60)} ranks"
    else:
        for rank, state in enumerate(states):
            if fault := random_fault(state):
                yield f"the random generators of rank {rank} have no such state ({fault})"
    kinds = {"spec": str, "pictures": int, "names": str}
    if not isinstance(data, Mapping) or any(type(data.get(name)) is not kind for name, kind in kinds.items()):
        yield "it does not say which data it is of"
    skipped = content["skipped"]
    if not isinstance(skipped, Mapping) or not all(
        isinstance(text, str) for entry in skipped.items() for text in entry
    ):
        yield "its list of unreadable pictures is none"
    if not isinstance(content["recipe"], Mapping):
        yield "it holds no recipe"
    else:
        try:
            recipe_from(content["recipe"], "in it")
        except InputError as error:
            yield f"it holds no recipe of this version ({error})"


def _faults(content: Mapping[str, Any], learner: Learner, total: int) -> Iterator[str]:
    yield from _plain_faults(content)
    if content["step"] > total:
        yield f"its step is {content['step']}, and the run has {total}"
    for name in ("student", "teacher"):
        yield from _tensor_faults(content[name], getattr(learner, name).state_dict(), name)
    yield from _loss_faults(content, learner)
    yield from _optimizer_faults(content, learner)
    yield from _scaler_faults(content["scaler"], learner.scaler.state_dict())


def _tensor_faults(given: Any, own: Mapping[str, Any], what: str) -> Iterator[str]:
    if not isinstance(given, Mapping):
        yield f"its {what} is no dictionary of tensors"
        return
    if wrong := own.keys() ^ given.keys():
        yield f"{what} has other entries than the recipe's ({some(sorted(map(str, wrong)))} {_lacks(own, given)})"
        return
    for name, tensor in own.items():
        if not isinstance(tensor, Tensor):
            continue
        if fault := _tensor_fault(given[name], tensor):
            yield f"{what} {name} {fault}"


def _lacks(own: Mapping[str, Any], given: Mapping[Any, Any]) -> str:
    more, fewer = given.keys() - own.keys(), own.keys() - given.keys()
    return "are too many" if not fewer else "are missing" if not more else "are missing or too many"


def _tensor_fault(given: Any, own: Tensor) -> str:
    if not isinstance(given, Tensor) or given.layout != torch.strided or given.is_quantized:
        return "is no tensor"
    if given.shape != own.shape or given.dtype != own.dtype:
        return f"is {tuple(given.shape)} of {given.dtype}; wanted {tuple(own.shape)} of {own.dtype}, as the recipe's model has"
    return "" if given.isfinite().all() else "has values that are NaN or infinite"


def _loss_faults(content: Mapping[str, Any], learner: Learner) -> Iterator[str]:
    given, own = content["loss"], learner.loss.state_dict()
    yield from _tensor_faults(given, own, "loss")
    if isinstance(given, Mapping):
        extra = given.get("_extra_state")
        started = extra.get("started") if isinstance(extra, Mapping) else None
        if type(started) is not bool or (content["step"] and not started):
            yield "it does not say that the centre has started"


def _optimizer_faults(content: Mapping[str, Any], learner: Learner) -> Iterator[str]:
    given, own = content["optimizer"], learner.optimizer.state_dict()
    if not isinstance(given, Mapping) or given.keys() != own.keys():
        yield f"its optimizer is none; wanted {some(own)}"
        return
    groups = given["param_groups"]
    if not isinstance(groups, list) or len(groups) != len(own["param_groups"]):
        yield "optimizer has other groups of parameters than the recipe's model"
        return
    for group, wanted in zip(groups, own["param_groups"], strict=True):
        if not isinstance(group, Mapping) or (wrong := [name for name in wanted if not _alike(name, group, wanted)]):
            yield f"optimizer: the group '{wanted['name']}' differs from the recipe's in {some(wrong or ['all'])}"
            return
    states = given["state"]
    parameters = [parameter for group in learner.optimizer.param_groups for parameter in group["params"]]
    if not isinstance(states, Mapping) or not all(
        type(place) is int and 0 <= place < len(parameters) for place in states
    ):
        yield "optimizer has moments of other parameters than the recipe's model"
        return
    names = {id(parameter): name for name, parameter in learner.student.named_parameters()}
    for place, parameter in enumerate(parameters):
        name = names[id(parameter)]
        if place in states:
            yield from _moment_faults(states[place], parameter, name, content["step"])
        elif not _never_moved(content, name):
            yield f"optimizer: the moments of {name} are missing"


def _alike(name: str, group: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    # Both are set before every step.
    if name == "lr" or (name == "weight_decay" and wanted["name"] == DECAYED):
        return _is_number(group.get(name)) and group[name] >= 0
    if name in ("name", "params", "betas", "eps", "weight_decay"):
        value, other = group.get(name), wanted[name]
        return type(value) in (type(other), list) and value == (list(other) if type(value) is list else other)
    return name not in group or (type(group[name]) is type(wanted[name]) and group[name] == wanted[name])


def _moment_faults(state: Any, parameter: Tensor, name: str, step: Any) -> Iterator[str]:
    wanted = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
    if not isinstance(state, Mapping) or state.keys() != wanted.keys():
        yield f"optimizer: {name} has other moments than AdamW's ({some(wanted)})"
        return
    for moment, like in wanted.items():
        if fault := _tensor_fault(state[moment], like):
            yield f"optimizer: {moment} of {name} {fault}"
            return
    if not 0 < float(state["step"]) <= step or (state["exp_avg_sq"] < 0).any():
        yield f"optimizer: {name} has moments that no {in_short(repr(step), 60)} steps leave"


def _never_moved(content: Mapping[str, Any], name: str) -> bool:
    """A parameter that no step has moved, as of a frozen layer, is in the teacher what it is in the student: both began so."""
    student, teacher = (content[network].get(name) for network in ("student", "teacher"))
    return isinstance(student, Tensor) and isinstance(teacher, Tensor) and torch.equal(student, teacher)


def _scaler_faults(given: Any, own: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(given, Mapping) or given.keys() != own.keys():
        yield "its scaler is not that of the recipe's precision"
    elif not all(_is_number(value) and (value > 0 or name == "_growth_tracker") for name, value in given.items()):
        yield "its scaler has values that are none"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)
