"""MODEL and DATA strings: `[label=]SPEC`, with SPEC `kind:rest?key=value&key=value`."""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl

from diffusionlens.errors import InputError

_LABEL = re.compile(r"^(?P<label>[A-Za-z0-9_.+-]+)=(?P<spec>.*)$", re.DOTALL)
_KIND = re.compile(r"^(?P<kind>[a-z0-9-]{2,}):(?P<rest>.*)$", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A parsed MODEL or DATA string. `kind` is empty for a bare path; `label` is None when not given."""

    text: str
    label: str | None
    kind: str
    rest: str
    query: dict[str, str] = field(default_factory=dict)


def parse_spec(
    text: str, what: str = "MODEL or DATA", wanted: str = "[label=]SPEC, for example timm:vit_small_patch16_224"
) -> Spec:
    """Splits `[label=][kind:]rest[?query]`. `what` was given, and what was `wanted`, are for the message.

    A `=` behind the first `?`, `:` or `/` belongs to the query or the path, not to a label. A drive letter
    ("C:...") is not a kind, since kinds have two letters or more.

    Raises:
        InputError: the text names nothing, or the query is not `key=value&key=value`.
    """
    label: str | None = None
    spec = text
    head = re.split(r"[?:/\\]", text, maxsplit=1)[0]
    if "=" in head and (found := _LABEL.match(text)):
        label, spec = found["label"], found["spec"]
    path, _, query_text = spec.partition("?")
    if not path.strip():
        raise InputError(f"{what} '{text}' {'names nothing' if text.strip() else 'is empty'}; wanted {wanted}")
    try:
        pairs = parse_qsl(query_text, keep_blank_values=True, strict_parsing=True) if query_text else []
    except ValueError:
        raise InputError(f"'{query_text}' in '{text}' is not a query; wanted ?key=value&key=value") from None
    query: dict[str, str] = {}
    for key, value in pairs:
        if key in query:
            raise InputError(f"'{key}' is given twice in '{text}'; give it once")
        query[key] = value
    kind = _KIND.match(path)
    if kind:
        return Spec(text, label, kind["kind"], kind["rest"], query)
    return Spec(text, label, "", path, query)


def check_query(spec: Spec, allowed: dict[str, str]) -> None:
    """Refuses query keys that are not in `allowed` (key -> what it means), naming the nearest.

    Raises:
        InputError: an unknown key.
    """
    for key in spec.query:
        if key not in allowed:
            near = get_close_matches(key, allowed, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            known = ", ".join(sorted(allowed)) or "none"
            raise InputError(f"'{key}' in '{spec.text}' is not an option of it (known: {known}){hint}")


def given_path(option: str, given: Path | str, wanted: str) -> Path:
    """`expand_path` of an option's value.

    Raises:
        InputError: the value is empty (a shell's variable may be), which Python would take for the directory one is in.
    """
    if not str(given).strip():
        raise InputError(f"{option} is empty; wanted {wanted}")
    return expand_path(str(given))


def expand_path(text: str) -> Path:
    """A path as the user wrote it, with `~` and `~name` for home folders.

    Raises:
        InputError: `~name` names nobody.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"'{text}' begins with the home folder of an unknown user; write the path in full") from None


def is_whole(text: str) -> bool:
    """Whether `text` is a whole number in plain digits, of a length that a number here can have ("²" is none)."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


_LARGEST = 8192  # pixels a side


def parse_size(text: str, option: str = "--size") -> tuple[int, int]:
    """`224` -> (224, 224), "224x320" -> (224, 320): height and width in pixels. `option` is for the message.

    Raises:
        InputError: something else.
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(is_whole(part) and 0 < int(part) <= _LARGEST for part in parts):
        raise InputError(
            f"{option} '{text}' is not a picture size; wanted N or HxW, as 224 or 224x320, with sides from 1 to {_LARGEST} "
            f"pixels"
        )
    return int(parts[0]), int(parts[-1])
