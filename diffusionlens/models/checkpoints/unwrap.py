"""Takes one network's weights out of whatever a training script saved around them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from diffusionlens.errors import InputError, some

State = dict[str, Tensor]
BRANCHES = ("teacher", "student")

# What trainings call the moving average of the weights and the weights that it follows: teacher and student, as in DINO. Of the
# other names either alone says nothing.
_PAIRS = (
    BRANCHES,
    ("target_encoder", "encoder"),
    ("momentum_encoder", "base_encoder"),
    ("state_dict_ema", "state_dict"),
    ("model_ema", "model"),
    ("ema", "model"),
)

# Names that torch's own wrappers put into a path; never part of a model's naming.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "backbone", "encoder")
_DEEPEST = 8  # dictionaries inside dictionaries; training files have three


@dataclass
class Unwrapped:
    """The network's weights under its own names; `branch` and `epoch` as far as the file says, and what was left out."""

    state: State = field(default_factory=dict)
    branch: str | None = None
    epoch: int | None = None
    dropped: list[tuple[str, str]] = field(default_factory=list)


def unwrap(content: Mapping[Any, Any], wanted_branch: str | None, anchors: Sequence[str], file: str) -> Unwrapped:
    """The one network in `content` that has a weight called as one of `anchors`.

    Args:
        content: what the file holds.
        wanted_branch: "teacher", "student", or None for the teacher where there is one.
        anchors: names that such a network has exactly one of.

    Raises:
        InputError: no such network, several of them, or not the wanted branch.
    """
    found = Unwrapped()
    tensors: State = {}
    for key, value in _innermost(content, wanted_branch, tuple(anchors), found, file).items():
        plain = _without_wrappers(key)
        if plain in tensors:
            raise InputError(
                f"{file} has the weight '{plain}' twice, with and without a wrapper's name; save one network"
            )
        tensors[plain] = value
    prefix = _prefix(tensors, wanted_branch, anchors, found, file)
    for key, value in tensors.items():
        if key.startswith(prefix):
            found.state[key[len(prefix) :]] = value
        else:
            found.dropped.append((key, "outside the backbone"))
    return found


def _innermost(
    content: Mapping[Any, Any], branch: str | None, anchors: tuple[str, ...], found: Unwrapped, file: str
) -> State:
    """Goes down through `teacher`, `state_dict`, ... to the dictionary of tensors."""
    for _ in range(_DEEPEST):
        if type(content.get("epoch")) is int:
            found.epoch = content["epoch"]
        nested = [key for key, value in content.items() if isinstance(value, Mapping) and _has_anchor(value, anchors)]
        if not nested:
            return _tensors(content, anchors, file)
        chosen = _chosen(nested, branch, found, file)
        for key in content:
            if key != chosen and key != "epoch":
                found.dropped.append((str(key), "not the chosen network" if key in nested else "training state"))
        content = content[chosen]
    raise InputError(f"{file} nests dictionaries more than {_DEEPEST} deep; save the state_dict alone")


def _chosen(nested: list[Any], branch: str | None, found: Unwrapped, file: str) -> Any:
    for pair in _PAIRS:
        named = {name: own for name, own in zip(BRANCHES, pair, strict=True) if own in nested}
        if len(named) == 2 or (pair == BRANCHES and named):
            chosen = branch or next(iter(named))
            if chosen not in named:
                raise InputError(f"{file} has no branch '{branch}'; it has {', '.join(named)}")
            found.branch = chosen
            return named[chosen]
    container = next((key for key in _CONTAINERS if key in nested), None)
    if container is None and len(nested) > 1:
        raise InputError(f"{file} holds several networks ({some(nested)}); save the one that is meant alone")
    return nested[0] if container is None else container


def _tensors(content: Mapping[Any, Any], anchors: tuple[str, ...], file: str) -> State:
    if not _has_anchor(content, anchors):
        names = some(content) or "nothing"
        raise InputError(f"{file} holds no ViT backbone: no '{anchors[0]}' among its entries ({names})")
    tensors = {key: value.detach() for key, value in content.items() if isinstance(value, Tensor)}
    strange = [key for key in tensors if not isinstance(key, str)]
    if strange:
        raise InputError(
            f"{file} has a weight under the key {strange[0]!r}, which is no name; save a model's state_dict()"
        )
    return tensors


def _has_anchor(content: Mapping[Any, Any], anchors: tuple[str, ...]) -> bool:
    """Whether an anchor is in `content` or below it. Files may nest without end or in circles: each mapping is seen once."""
    level, seen = [content], set()
    for _ in range(_DEEPEST):
        below = []
        for mapping in level:
            if id(mapping) not in seen:
                seen.add(id(mapping))
                for key, value in mapping.items():
                    if isinstance(value, Mapping):
                        below.append(value)
                    elif isinstance(value, Tensor) and isinstance(key, str) and _is_anchor(key, anchors):
                        return True
        level = below
    return False


def _is_anchor(key: str, anchors: Sequence[str]) -> bool:
    key = _without_wrappers(key)
    return any(key == anchor or key.endswith(f".{anchor}") for anchor in anchors)


def _without_wrappers(key: str) -> str:
    parts = [part for part in key.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts.pop(0)
    return ".".join(parts)


def _prefix(tensors: State, branch: str | None, anchors: Sequence[str], found: Unwrapped, file: str) -> str:
    """What stands before the backbone's own names ("backbone.", "teacher.backbone.", "dinov2.", ...)."""
    prefixes = {key[: -len(anchor)] for key in tensors for anchor in anchors if _is_anchor(key, [anchor])}
    if len(prefixes) > 1 or branch:
        for pair in _PAIRS:
            named = {
                name: [prefix for prefix in prefixes if prefix.split(".")[0] == own]
                for name, own in zip(BRANCHES, pair, strict=True)
            }
            name = branch or ("teacher" if named["teacher"] else "student")
            if len(named[name]) == 1 and (all(named.values()) or pair == BRANCHES):
                found.branch = name
                return named[name][0]
        if branch and found.branch != branch:
            raise InputError(f"{file} has no branch '{branch}'; leave out ?branch, it holds one network")
    if len(prefixes) != 1:
        names = some(f"'{prefix}'" for prefix in sorted(prefixes))
        raise InputError(f"{file} holds several networks (under {names}); save the one that is meant alone")
    return prefixes.pop()
