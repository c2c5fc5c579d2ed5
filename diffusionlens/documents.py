"""YAML documents that people write, recipes and plans: found by path or name, extending one another, with `--set key=value`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from diffusionlens.errors import InputError, in_short

_SUFFIXES = (".yaml", ".yml")
_LARGEST = 100_000
"""Values of a document: a file of 300 bytes can stand for more than any memory holds, through aliases of aliases."""


@dataclass(frozen=True)
class DocumentKind:
    """What a kind of document is called ("recipe"), where the shipped ones lie (`packed` inside the package, `folder` in a
    checkout), and a setting as an `example`."""

    word: str
    packed: str
    folder: str
    example: str

    def shipped(self) -> dict[str, Path]:
        """Name -> file of the documents that come with the package."""
        package = Path(str(files("diffusionlens")))
        for folder in (package / self.packed, package.parent / self.folder):
            if folder.is_dir():  # the second is a checkout's own
                return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        return {}

    def find(self, name: str, beside: Path) -> Path:
        """The file `name`, looked up as a path from `beside` first, then among the shipped ones.

        Raises:
            InputError: there is none; names the nearest.
        """
        shipped = self.shipped()
        for candidate in (beside / name, *(beside / f"{name}{suffix}" for suffix in _SUFFIXES)):
            if candidate.is_file():
                return candidate.resolve()
        if name in shipped:
            return shipped[name].resolve()
        near = get_close_matches(Path(name).stem, shipped, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        known = ", ".join(shipped) or "none"
        raise InputError(f"no {self.word} '{name}': not a YAML file, and not one of {known}{hint}")

    def read(self, name: str, beside: Path = Path(), above: tuple[Path, ...] = ()) -> dict[str, Any]:
        """The content of a document, what it extends filled in. `above` are the files that led here.

        Raises:
            InputError: no such file, not YAML, no keys, or it extends itself.
        """
        path = self.find(name, beside)
        if path in above:
            raise InputError(f"{self.word} {path} extends itself (by way of {above[-1]}); take one 'extends' out")
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date like 2020-13-45; lists without end
            reason = in_short(error)
            raise InputError(f"{self.word} {path} is not YAML ({reason})") from None
        except OSError as error:
            raise InputError(f"{self.word} {path} can't be read ({error.strerror})") from None
        if _size(content, {}) > _LARGEST:
            raise InputError(
                f"{self.word} {path}: its aliases (*name) stand for over {_LARGEST} values; write out what is meant"
            )
        if not isinstance(content, dict):
            raise InputError(f"{self.word} {path} holds no keys; wanted YAML of 'key: value'")
        bases = content.pop("extends", [])
        bases = [bases] if isinstance(bases, str) else bases
        if not (isinstance(bases, list) and all(isinstance(base, str) for base in bases)):
            raise InputError(
                f"{self.word} {path}: extends is {bases!r}; wanted the name of a {self.word}, or a list of names"
            )
        merged: dict[str, Any] = {}
        for base in bases:
            merged = merge(merged, self.read(base, path.parent, (*above, path)))
        return merge(merged, content)

    def parse_settings(self, settings: Sequence[str]) -> dict[str, Any]:
        """Dotted key -> value of settings like "optimizer.lr=1e-3".

        Raises:
            InputError: one of another form, whose value is not YAML, or that sets what another one sets.
        """
        found: dict[str, Any] = {}
        for text in settings:
            key, separator, value = text.partition("=")
            if not separator or not key.strip():
                raise InputError(f"--set {text}; wanted key=value, as {self.example}")
            key = key.strip()
            if other := next(
                (one for one in found if f"{one}.".startswith(f"{key}.") or f"{key}.".startswith(f"{one}.")), None
            ):
                also = "" if other == key else f" (also by {other})"
                raise InputError(f"--set {key} is given twice{also}; give it once")
            try:
                found[key] = yaml.load(value, Loader=Loader)
            except (yaml.YAMLError, ValueError, RecursionError):
                raise InputError(f"--set {text}: '{value}' is not a YAML value; put it in quotes") from None
        return found


def _size(content: object, known: dict[int, int]) -> int:
    """How many values `content` holds, those of an alias as often as it stands there; what holds itself is not counted on."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        known[id(content)] = 1
        held = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_size(value, known) for value in held)
    return known[id(content)]


def as_json(content: Mapping[str, Any], what: str) -> str:
    """A document's content as JSON, dates and the like as text.

    Raises:
        InputError: it holds what JSON can't: a key that is no text, an alias inside what it stands for.
    """
    try:
        return json.dumps(content, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} can't be made sense of ({in_short(error)}); wanted 'key: value'") from None


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with numbers as people write them (1e-3 is one) and without a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice in the section at line {line}")
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets the dotted `key`, making the sections on the way."""
    *sections, last = key.split(".")
    for section in sections:
        below = content.get(section)
        content[section] = dict(below) if isinstance(below, Mapping) else {}
        content = content[section]
    content[last] = value
