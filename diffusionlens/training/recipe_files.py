"""Reading recipes: YAML files that extend one another, overlays, and `--set key=value`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from diffusionlens.errors import InputError, in_short
from diffusionlens.training.recipe import Recipe

_SUFFIXES = (".yaml", ".yml")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with numbers as people write them (1e-3 is one) and without a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice in the section at line {line}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of the recipes that come with the package."""
    for folder in (Path(str(files("diffusionlens"))) / "_recipes", Path(__file__).parents[2] / "train"):
        if folder.is_dir():  # the second is a checkout's own
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def read_recipe(name: str | Path, overlays: Sequence[str | Path] = (), settings: Sequence[str] = ()) -> Recipe:
    """The recipe `name` with `overlays` laid over it in their order, then `settings` ("optimizer.lr=1e-3").

    A name is looked up as a path first, then among the shipped recipes.

    Raises:
        InputError: no such recipe, not YAML, an unknown or missing key (named, with the nearest known one), a wrong value.
    """
    content: dict[str, Any] = {}
    for one in (name, *overlays):
        content = _merge(content, _read(str(one), Path(), ()))
    given = dict(_parse_setting(setting) for setting in settings)
    for key, value in given.items():
        _put(content, key, value)
    return _validate(content, str(name), given)


def recipe_from(content: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from plain values, as a checkpoint keeps them.

    Raises:
        InputError: it is not one of this version.
    """
    return _validate(dict(content), where, {})


def write_recipe(recipe: Recipe) -> str:
    """The resolved recipe as YAML that `read_recipe` reads."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def known_keys(section: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """Every key of a recipe, dotted."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from known_keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def differences(one: Recipe, other: Recipe, ignore: Sequence[str] = ()) -> list[str]:
    """`key: value of one -> value of other` for every key that differs, but for those of the sections `ignore`."""
    left, right = dict(_flat(one.model_dump(mode="json"))), dict(_flat(other.model_dump(mode="json")))
    keys = [key for key in {**left, **right} if key.split(".")[0] not in ignore]
    absent = "not there"
    return [
        f"{key}: {left.get(key, absent)} -> {right.get(key, absent)}"
        for key in keys
        if left.get(key, absent) != right.get(key, absent)
    ]


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _read(name: str, beside: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The content of a recipe file, what it extends filled in. `above` are the files that led here."""
    path = _find(name, beside)
    if path in above:
        raise InputError(f"recipe {path} extends itself (by way of {above[-1]}); take one 'extends' out")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} is not YAML ({in_short(error)})") from None
    except OSError as error:
        raise InputError(f"recipe {path} can't be read ({error.strerror})") from None
    if not isinstance(content, dict):
        raise InputError(f"recipe {path} holds no keys; wanted YAML of 'key: value'")
    bases = content.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not (isinstance(bases, list) and all(isinstance(base, str) for base in bases)):
        raise InputError(f"recipe {path}: extends is {bases!r}; wanted the name of a recipe, or a list of names")
    merged: dict[str, Any] = {}
    for base in bases:
        merged = _merge(merged, _read(base, path.parent, (*above, path)))
    return _merge(merged, content)


def _find(name: str, beside: Path) -> Path:
    shipped = shipped_recipes()
    for candidate in (beside / name, *(beside / f"{name}{suffix}" for suffix in _SUFFIXES)):
        if candidate.is_file():
            return candidate.resolve()
    if name in shipped:
        return shipped[name].resolve()
    near = get_close_matches(Path(name).stem, shipped, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise InputError(f"no recipe '{name}': not a YAML file, and not one of {', '.join(shipped) or 'none'}{hint}")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _parse_setting(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InputError(f"--set {text}; wanted key=value, as optimizer.lr=1e-3")
    try:
        return key.strip(), yaml.load(value, Loader=_Loader)
    except yaml.YAMLError:
        raise InputError(f"--set {text}: '{value}' is not a YAML value; put it in quotes") from None


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        below = content.get(section)
        content[section] = dict(below) if isinstance(below, Mapping) else {}
        content = content[section]
    content[last] = value


def _validate(content: dict[str, Any], where: str, settings: Mapping[str, Any]) -> Recipe:
    try:
        # By way of JSON, where pydantic's strict mode takes a list for a tuple and nothing else for anything else.
        return Recipe.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        raise InputError(_explain(error, where, settings)) from None


def _explain(error: ValidationError, where: str, settings: Mapping[str, Any]) -> str:
    # An unknown key says more than the missing one it was meant to be.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    names = [str(part) for part in first["loc"]]
    known = list(known_keys())
    # pydantic's places go on into unions and tuples; what the reader wrote is the longest known key.
    key = next((k for end in range(len(names), 0, -1) if (k := ".".join(names[:end])) in known), ".".join(names))
    place = f"--set {key}={settings[key]}" if key in settings else f"recipe {where}: {key}"
    if first["type"] == "extra_forbidden":
        leaves = {known_key.rsplit(".", 1)[-1]: known_key for known_key in known}
        near = get_close_matches(key, known, n=1, cutoff=0.75) or [
            leaves[leaf] for leaf in get_close_matches(names[-1], leaves, n=1, cutoff=0.7)
        ]
        hint = f"did you mean {near[0]}?" if near else "docs/training.md lists the keys"
        return f"{place} is not a key of a recipe; {hint}"
    if first["type"] == "missing" and key == ".".join(names):
        return f"{place} is missing; give it, or extend a whole recipe (extends: dino_vits16)"
    message = "too few values" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
    got = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
    return f"{place if names else 'recipe ' + where}: {message}{got}"
