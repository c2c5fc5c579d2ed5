"""The diagnostics that `measure` knows, by name, and their options from `analysis.key=value` settings."""

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

import yaml
from pydantic import ValidationError

from diffusionlens.analysis.diagnostic import Context, Diagnostic, LeftOut, Options
from diffusionlens.analysis.diffusion.diagnostic import Diffusion
from diffusionlens.analysis.discovery.diagnostic import Discovery
from diffusionlens.analysis.explorer import Explorer
from diffusionlens.analysis.norms.diagnostic import Norms
from diffusionlens.analysis.pca import Pca
from diffusionlens.analysis.pib import Pib
from diffusionlens.analysis.similarity.diagnostic import Similarity
from diffusionlens.analysis.sparsity.diagnostic import Sparsity
from diffusionlens.errors import InputError
from diffusionlens.wanted import wanted

_KINDS: tuple[type[Diagnostic], ...] = (Pib, Norms, Sparsity, Similarity, Pca, Diffusion, Discovery)

_ADDED: tuple[type[Diagnostic], ...] = ()
"""Those that a checkout adds for itself; they get a figure by layer."""

STANDARD = tuple(kind.name for kind in _KINDS[:5])
"""What is measured when nothing is named: the analyses that share the one forward pass. The others send changed pictures
through the model too, and cost a multiple."""

DIAGNOSTICS: dict[str, type[Diagnostic]] = {kind.name: kind for kind in _KINDS + _ADDED} | {Explorer.name: Explorer}
"""All that take options. The explorer is no analysis: it measures nothing, and is asked for by a number of pictures."""

Kind = TypeVar("Kind", bound=type[Diagnostic])

_NAME = re.compile("[a-z][a-z0-9_]{0,39}")


def register(kind: Kind) -> Kind:
    """Makes a diagnostic of one's own known to `measure` by its name; a class decorator. Registered again it is replaced.

    Raises:
        InputError: it is no diagnostic, its name is not of small letters, digits and underscores, or a built-in one has it.
    """
    if not (isinstance(kind, type) and issubclass(kind, Diagnostic)):
        raise InputError(
            f"{kind!r} is no subclass of Diagnostic; derive it from diffusionlens.analysis.diagnostic.Diagnostic"
        )
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{kind.__name__}.name is {name!r}; wanted small letters, digits and underscores, as 'drift'")
    if name == Explorer.name or any(name == own.name for own in _KINDS):
        raise InputError(f"'{name}' is an analysis of diffusionlens; give {kind.__name__} another name")
    DIAGNOSTICS[name] = kind
    return kind


def added_analyses() -> list[str]:
    """The names that `register` or a checkout has added."""
    return [name for name in analyses() if all(name != kind.name for kind in _KINDS)]


def analyses() -> list[str]:
    """What `--analyses` can name, in the order of the output."""
    return [name for name in DIAGNOSTICS if name != Explorer.name]


def parse_analyses(text: str) -> list[str]:
    """`standard`, `all`, or names separated by commas (`standard` among them, if wished), in the order of `analyses()`.

    Raises:
        InputError: an unknown name.
    """
    if text.strip() == "all":
        return analyses()
    names = [name.strip() for name in text.split(",") if name.strip()]
    if "standard" in names:
        names += STANDARD
        names = [name for name in names if name != "standard"]
    for name in names:
        _known(name, analyses(), "analysis")
    if not names:
        raise InputError(f"no analysis was named; wanted standard, all, or some of {', '.join(analyses())}")
    return [name for name in analyses() if name in names]


def parse_options(settings: Iterable[str]) -> dict[str, Options]:
    """Options of every diagnostic, from defaults and settings like "pib.hit=center".

    Raises:
        InputError: a setting of another form, an unknown key, a value that does not fit.
    """
    values: dict[str, dict[str, object]] = {name: {} for name in DIAGNOSTICS}
    for setting in settings:
        path, equals, value = setting.partition("=")
        name, dot, key = path.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"--set '{setting}' is not understood; wanted ANALYSIS.KEY=VALUE, as pib.hit=center")
        _known(name, DIAGNOSTICS, "analysis")
        _known(key, DIAGNOSTICS[name].options_type.model_fields, f"option of {name}")
        if key in values[name]:
            raise InputError(f"--set {name}.{key} is given twice; give it once")
        try:
            values[name][key] = _finite(yaml.safe_load(value))
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: .inf, or a date like 2020-13-45
            raise InputError(f"--set '{setting}': '{value}' is not a plain value") from None
    options = {}
    for name, chosen in values.items():
        try:
            options[name] = DIAGNOSTICS[name].options_type(**chosen)
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0])
            raise InputError(f"--set {name}.{key}={chosen.get(key)}; {wanted(first)}") from None
    return options


def make(name: str, context: Context, options: Options) -> Diagnostic | LeftOut:
    """The diagnostic, or why it can't be had for this model and these pictures."""
    kind = DIAGNOSTICS[name]
    for need in sorted(kind.needs):
        if need in ("boxes", "masks", "labels") and need not in context.provides:
            return LeftOut(name, f"the data has no {need}")
        if need == "cls" and not context.backbone.has_cls:
            return LeftOut(name, "the model has no CLS token")
        if need == "attention" and max(context.layers) == 0:
            return LeftOut(name, "layer 0 has no attention")
    diagnostic = kind(context, options)
    unusable = getattr(diagnostic, "unusable", None)
    return diagnostic if unusable is None else unusable


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    return value


def _known(name: str, known: Iterable[str], what: str) -> None:
    names: Sequence[str] = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"'{name}' is no {what} (known: {', '.join(names) or 'none'}){hint}")
