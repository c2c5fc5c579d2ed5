"""What the options behind a MODEL's ? say, checked."""

from collections.abc import Sequence

from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, is_whole


def refuse_options(spec: Spec, keys: Sequence[str], why: str) -> None:
    """Refuses options that say what the model says itself.

    Raises:
        InputError: one of `keys` is given.
    """
    for key in keys:
        if key in spec.query:
            raise InputError(f"?{key} in '{spec.text}' does not apply: {why}; leave it out")


def choice(spec: Spec, key: str, known: tuple[str, ...]) -> str | None:
    """One of the words `known`, or None when the option is not given.

    Raises:
        InputError: another word.
    """
    value = spec.query.get(key)
    if value is not None and value not in known:
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted one of {', '.join(known)}")
    return value


def heads_of(spec: Spec) -> int | None:
    """`?heads=6`, or None.

    Raises:
        InputError: not a whole number from 1.
    """
    text = spec.query.get("heads")
    if text is None:
        return None
    if not is_whole(text) or int(text) == 0:
        raise InputError(f"?heads={text} in '{spec.text}'; wanted a whole number, as ?heads=6")
    return int(text)


def flag(spec: Spec, key: str, *, default: bool) -> bool:
    """`true` or `false`.

    Raises:
        InputError: another word.
    """
    value = spec.query.get(key)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted true or false")
    return value.lower() == "true"
