"""Reading plans: YAML files found by path or by name, `--set` over them, and what can be wrong in them, in one line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from diffusionlens.analysis.probes.heads.kinds import parse_kinds
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.settings.recipe import TASKS
from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.documents import DocumentKind, as_json, merge, put
from diffusionlens.errors import InputError
from diffusionlens.pages.figures import FIGURE_STEMS
from diffusionlens.pages.track import TRACK_STEMS
from diffusionlens.plans.published import published_names
from diffusionlens.plans.schema import (
    Column,
    ExplorerSection,
    MeasureSection,
    Plan,
    ProbeSection,
    Role,
    Section,
    TableSection,
    TrackSection,
    Value,
)
from diffusionlens.spec import parse_size
from diffusionlens.wanted import wanted

PLANS = DocumentKind("plan", packed="_plans", folder="analyses", example="images=100 or pib.images=100")
_KINDS: dict[str, type[BaseModel]] = {
    "measure": MeasureSection,
    "probe": ProbeSection,
    "track": TrackSection,
    "explorer": ExplorerSection,
    "table": TableSection,
}


def read_plan(name: str | Path, settings: Sequence[str] = ()) -> Plan:
    """The plan `name` with `settings` over it: "images=100", or "pib.images=100" for a key of the section `pib`.

    Raises:
        InputError: no such plan, not YAML, an unknown key, analysis, task or figure (named, with the nearest), a wrong value.
    """
    content = merge({}, PLANS.read(str(name)))
    for key, value in PLANS.parse_settings(settings).items():
        _set(content, key, value)
    try:
        plan = Plan.model_validate_json(as_json(content, f"plan {name}"))
    except ValidationError as error:
        raise InputError(f"plan {name}: {_explain(error, content)}") from None
    for title, section in plan.sections.items():
        try:
            _check_section(plan, section)
        except InputError as error:
            raise InputError(f"plan {name}, section {title}: {error}") from None
    return plan


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    """A key of the plan, or of one of its sections; what follows `options.` is one key."""
    sections = content.get("sections")
    known = list(sections) if isinstance(sections, Mapping) else []
    first, _, rest = key.partition(".")
    if first not in Plan.model_fields and first not in known:
        near = get_close_matches(first, [*known, *Plan.model_fields], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"--set {key}={value}: the plan has no section and no key '{first}'{hint}")
    if first in Plan.model_fields:
        put(content, key, value)
        return
    head, options, option = rest.partition("options.")
    if options and not head:
        section = sections[first] = dict(sections[first])  # type: ignore[index]
        section["options"] = {**(section.get("options") or {}), option: value}
        return
    put(content, f"sections.{key}", value)


def _check_section(plan: Plan, section: Section) -> None:
    if isinstance(section, TableSection):
        for column in section.columns:
            _known(column.section, [n for n, s in plan.sections.items() if not isinstance(s, TableSection)], "section")
        if section.published is not None:
            _known(section.published, published_names(), "published table")
        return
    _known(section.data, plan.data, "role of the plan's data")
    if section.size is not None:
        parse_size(section.size, "size")
    if isinstance(section, ProbeSection):
        recipe_for(section.task, section.preset, settings_of_options(section.options))
        parse_kinds(section.tokens)
        if not plan.data[section.data].train:
            raise InputError(
                f"a probe needs a training set, and the role '{section.data}' has none; give it train: true"
            )
    elif isinstance(section, ExplorerSection):
        return
    else:
        parse_analyses(",".join(section.analyses))
        parse_options(settings_of_options(section.options))
    for stem in section.figures:
        _known(stem, TRACK_STEMS if isinstance(section, TrackSection) else FIGURE_STEMS, "figure")


def settings_of_options(options: Mapping[str, Value]) -> list[str]:
    """Options of a section as the settings that `measure` and `probe` take."""
    return [f"{key}={json.dumps(value)}" for key, value in options.items()]


def _explain(error: ValidationError, content: Mapping[str, Any]) -> str:
    """The first mistake; an unknown key says more than the missing one that it was meant to be."""
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    place = [str(part) for part in first["loc"]]
    if len(place) > 2 and place[0] == "sections" and place[2] in _KINDS:
        del place[2]  # pydantic says which kind it took
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        near = get_close_matches(place[-1], _keys_beside(place, content), n=1)
        return f"{key} is not a key of a plan" + (
            f"; did you mean {near[0]}?" if near else "; docs/reports.md lists the keys"
        )
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = first["input"].get("kind") if isinstance(first["input"], dict) else None
        return f"{key}.kind is {given!r}{_near(given, _KINDS)}; wanted {', '.join(_KINDS)}"
    if not place:
        return first["msg"].removeprefix("Value error, ")
    if place[-1] == "task" and first["type"] == "literal_error":
        return f"{key} is {first['input']!r}{_near(first['input'], TASKS)}; wanted {', '.join(TASKS)}"
    if first["type"] == "missing":
        return f"{key} is missing; docs/reports.md says what it holds"
    got = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
    return f"{key}: {wanted(first)}{got}".removeprefix(": ")


def _keys_beside(place: Sequence[str], content: Mapping[str, Any]) -> list[str]:
    """The keys that may stand where an unknown one does."""
    if place[0] == "data" and len(place) > 2:
        return list(Role.model_fields)
    if place[0] == "sections" and len(place) > 2:
        if "columns" in place:
            return list(Column.model_fields)
        return list(_KINDS[content["sections"][place[1]]["kind"]].model_fields)
    return ["extends", *Plan.model_fields]


def _near(given: object, known: Iterable[str]) -> str:
    near = get_close_matches(str(given), list(known), n=1)
    return f", did you mean '{near[0]}'?" if near else ""


def _known(name: str, known: Iterable[str], what: str) -> None:
    names = list(known)
    if name not in names:
        raise InputError(f"'{name}' is no {what}{_near(name, names)} (known: {', '.join(names) or 'none'})")
