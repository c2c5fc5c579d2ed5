"""Reading recipes: YAML files that extend one another, overlays, and `--set key=value`."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from diffusionlens.documents import DocumentKind, as_json, merge, put
from diffusionlens.errors import InputError
from diffusionlens.training.recipe import Recipe
from diffusionlens.wanted import wanted

RECIPES = DocumentKind("recipe", packed="_recipes", folder="train", example="optimizer.lr=1e-3")


def read_recipe(name: str | Path, overlays: Sequence[str | Path] = (), settings: Sequence[str] = ()) -> Recipe:
    """The recipe `name` with `overlays` laid over it in their order, then `settings` ("optimizer.lr=1e-3").

    A name is looked up as a path first, then among the shipped recipes.

    Raises:
        InputError: no such recipe, not YAML, an unknown or missing key (named, with the nearest known one), a wrong value.
    """
    content: dict[str, Any] = {}
    for one in (name, *overlays):
        content = merge(content, RECIPES.read(str(one)))
    given = RECIPES.parse_settings(settings)
    for key, value in given.items():
        put(content, key, value)
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


def _validate(content: dict[str, Any], where: str, settings: Mapping[str, Any]) -> Recipe:
    try:
        # By way of JSON, where pydantic's strict mode takes a list for a tuple and nothing else for anything else.
        return Recipe.model_validate_json(as_json(content, f"recipe {where}"))
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
    message = "too few values" if first["type"] == "missing" else wanted(first)
    got = "" if isinstance(first["input"], dict) or first["type"] == "json_invalid" else f" (got {first['input']!r})"
    return f"{place if names else 'recipe ' + where}: {message}{got}"
