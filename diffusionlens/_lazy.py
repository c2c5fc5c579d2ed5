"""Names of a package that bring their modules when they are first asked for (PEP 562): torch and what builds on it take seconds
to import, for which neither `--help` nor a mistyped option should have to wait."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str, places: Mapping[str, str], rooms: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package.

    Args:
        places: name -> module of the package that has it. rooms: modules that can be reached without being imported by name.
    """

    def get(name: str) -> Any:
        if name in places:
            return getattr(import_module(f"{package}.{places[name]}"), name)
        if name in rooms:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places, *rooms})

    return get, names
