"""What a setting may be, as types that check it and say in words what was wanted: no range is left to chance."""

import re
from collections.abc import Callable
from typing import Any

from pydantic import BeforeValidator

Check = Callable[[Any], Any]


def whole(low: int, high: int, *, also: tuple[Any, ...] = ()) -> BeforeValidator:
    """A whole number from `low` to `high`, or one of the words `also`."""
    return BeforeValidator(_or(also, _whole(low, high), f"a whole number from {low} to {high}"))


def number(low: float, high: float, *, above: bool = False, also: tuple[Any, ...] = ()) -> BeforeValidator:
    """A number from (with `above`: above) `low` to `high`, or one of the words `also`."""
    return BeforeValidator(_or(also, _number(low, high, above=above), _range(low, high, above=above)))


def flag() -> BeforeValidator:
    """true or false, and no number for it."""

    def check(value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return BeforeValidator(_or((), check, "true or false"))


def pair(low: float, high: float, *, also: tuple[Any, ...] = ()) -> BeforeValidator:
    """Two numbers above `low` to `high`, the smaller one first."""
    one = _number(low, high, above=True)

    def check(value: Any) -> Any:
        first, second = (one(entry) for entry in _entries(value))
        if first > second:
            raise ValueError
        return first, second

    wanted = f"two numbers above {low:g} to {high:g}, the smaller one first"
    return BeforeValidator(_or(also, check, wanted))


def size(low: int, high: int, *, also: tuple[Any, ...] = ()) -> BeforeValidator:
    """Rows and columns: 512 is 512 x 512, "416x544" is rows x columns."""
    side = _whole(low, high)

    def check(value: Any) -> Any:
        if isinstance(value, str):
            if not re.fullmatch("[0-9]+x[0-9]+", value):
                raise ValueError
            value = tuple(map(int, value.split("x")))
        elif not isinstance(value, list | tuple):
            value = (value, value)
        rows, columns = (side(entry) for entry in value)
        return rows, columns

    return BeforeValidator(_or(also, check, f"a size as 512 or 416x544, sides from {low} to {high}"))


def wholes(low: int, high: int, most: int) -> BeforeValidator:
    """One to `most` different whole numbers."""
    wanted = f"1 to {most} different whole numbers from {low} to {high}"
    return BeforeValidator(_or((), _different(_whole(low, high), most), wanted))


def numbers(low: float, high: float, most: int) -> BeforeValidator:
    """One to `most` different numbers above `low`."""
    wanted = f"1 to {most} different numbers above {low:g} to {high:g}"
    return BeforeValidator(_or((), _different(_number(low, high, above=True), most), wanted))


def words(known: tuple[str, ...]) -> BeforeValidator:
    """One or several different ones of `known`."""

    def check(value: Any) -> Any:
        if value not in known:
            raise ValueError
        return value

    return BeforeValidator(_or((), _different(check, len(known)), f"one or several of {', '.join(known)}, each once"))


def _or(also: tuple[Any, ...], check: Check, wanted: str) -> Check:
    names = [f", or {'null' if word is None else word}" for word in also]

    def checked(value: Any) -> Any:
        if any(value is word or (isinstance(value, str) and value == word) for word in also):
            return value
        try:
            return check(value)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"wanted {wanted}{''.join(names)}") from None

    return checked


def _whole(low: int, high: int) -> Check:
    inside = _number(low, high, above=False)

    def check(value: Any) -> Any:
        if inside(value) != int(value):
            raise ValueError
        return int(value)

    return check


def _number(low: float, high: float, *, above: bool) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        if not low <= value <= high or (above and value == low):  # NaN is not within either
            raise ValueError
        return value

    return check


def _range(low: float, high: float, *, above: bool) -> str:
    return f"a number {'above' if above else 'from'} {low:g} to {high:g}"


def _different(check: Check, most: int) -> Check:
    def checked(value: Any) -> Any:
        found = tuple(check(entry) for entry in _entries(value))
        if not 1 <= len(found) <= most or len(set(found)) < len(found):
            raise ValueError
        return found

    return checked


def _entries(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError
    return value
