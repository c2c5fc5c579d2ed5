"""Whether two results were measured in the same way: what forbids a comparison, and what a reader must know."""

from typing import Any

from diffusionlens.comparison.result_directory import Result
from diffusionlens.spec import parse_spec

_CHOICE = ("n",)  # which pictures, not what they are: pictures are matched by name


def refusals(first: Result, second: Result) -> list[str]:
    """Why a difference would not be one of the models: other data, other options of an analysis, another fit."""
    found = []
    ours, theirs = (_data(result) for result in (first, second))
    if ours["kind"] != theirs["kind"] or ours["query"] != theirs["query"]:
        found.append(f"the data are {theirs['text']} and {ours['text']}")
    elif (
        first.per_image.size
        and second.per_image.size
        and not set(first.per_image["name"]) & set(second.per_image["name"])
    ):
        found.append("they have no picture in common")
    for analysis, options in first.manifest.get("analyses", {}).items():
        others = second.manifest.get("analyses", {}).get(analysis)
        if others is None:
            continue
        trained = [_with_trained_heads(result) for result in (first, second)]
        # Heads that were trained before bring only what they are scored with; the rest is of another run's manifest.
        keys = set(options) & set(others) if any(trained) else set(options) | set(others)
        for key in sorted(keys):
            if options.get(key) != others.get(key):
                found.append(f"{analysis}.{key} is {others.get(key)} and {options.get(key)}")
    fits = [result.manifest.get("settings", {}).get("fit") for result in (second, first)]
    if fits[0] != fits[1]:
        found.append(f"pictures were made to fit by {fits[0]} and {fits[1]}")
    return found


def remarks(first: Result, first_model: str, second: Result, second_model: str) -> list[str]:
    """What may explain a difference beside the weights: size, grid, depth, query, place of the data, training data, versions."""
    ours, theirs = first.entry(first_model), second.entry(second_model)
    found = []
    for key, name in (
        ("size", "picture size"),
        ("grid", "grid of patches"),
        ("depth", "number of blocks, so that a layer's number does not mean the same place"),
        ("pib_query", "query of Point-in-Box"),
    ):
        if ours.get(key) != theirs.get(key):
            found.append(f"another {name} ({_plain(theirs.get(key))} and {_plain(ours.get(key))})")
    if first is second:
        return found
    here, there = _data(first), _data(second)
    if here["place"] != there["place"]:
        found.append(
            f"the data lie in different places ({there['text']} and {here['text']}); pictures are matched by name, and "
            f"nobody has looked whether they are the same"
        )
    heads = [[one["spec"] for one in result.manifest["data"][1:]] for result in (second, first)]
    if heads[0] != heads[1]:
        found.append(f"other training data of the probe ({_plain(heads[0])} and {_plain(heads[1])})")
    for name in ("diffusionlens", "torch", "timm"):
        versions = [result.manifest.get("versions", {}).get(name) for result in (second, first)]
        if versions[0] != versions[1]:
            found.append(f"other versions of {name} ({versions[0]} and {versions[1]})")
    return found


def _with_trained_heads(result: Result) -> bool:
    return any("heads" in model.get("probe", {}) for model in result.manifest["models"])


def _data(result: Result) -> dict[str, Any]:
    """The pictures that were measured: kind, place and options of the DATA string."""
    text = str(result.manifest["data"][0].get("spec", ""))
    spec = parse_spec(text or "unknown")
    query = {key: value for key, value in spec.query.items() if key not in _CHOICE}
    return {"text": text, "kind": spec.kind, "place": spec.rest, "query": query}


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " x ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
