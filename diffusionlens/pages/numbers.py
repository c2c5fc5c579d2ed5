"""How numbers are written for people."""

import math
import re
from typing import Any

import pandas as pd


def short(value: float, digits: int = 3) -> str:
    """At least `digits` significant digits, no exponent in the usual range, no trailing dots."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e5 or size < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    return f"{value:.{min(decimals, 6)}f}"


def with_interval(row: Any) -> str:
    """`61.1 (38.6 to 79.7)`, the bounds with the decimals of the value; the value alone without an interval."""
    text, interval = _value_and_interval(row.value, row.low, row.high)
    return text + interval


def percent_with_interval(row: Any) -> str:
    """A share as `2.40 (2.10 to 2.80) %`."""
    text, interval = _value_and_interval(100 * row.value, 100 * row.low, 100 * row.high)
    return f"{text}{interval} %"


def pictures(count: int) -> str:
    """`1 picture`, `2 pictures`."""
    return f"{count} picture{'s' * (int(count) != 1)}"


_MOST_DIGITS = 6  # as many as results.csv has


def _value_and_interval(value: float, low: float, high: float) -> tuple[str, str]:
    """The fewest digits, three at least, that tell both bounds from the value: "196 (196 to 196)" would hide a width."""
    if math.isnan(low) or math.isnan(high):
        return short(value), ""
    told: list[tuple[str, str]] = []
    for digits in range(3, _MOST_DIGITS + 1):
        text = short(value, digits)
        scale = text if value else short(max(low, high, key=abs), digits)  # a 0 has no digits of its own
        decimals = len(scale.partition(".")[2])
        bounds = [short(bound, digits) if "e" in scale else f"{bound:.{decimals}f}" for bound in (low, high)]
        told.append((text, f" ({bounds[0]} to {bounds[1]})"))
        if all(shown != text or bound == value for shown, bound in zip(bounds, (low, high), strict=True)):
            return told[-1]
    return told[0]


def typeset(text: str) -> str:
    """A true minus sign, and no line break before a percent sign."""
    return re.sub(r"(?<![\w.+-])-(?=\d)", "\u2212", text).replace(" %", "\u00a0%")


def overlap(first: Any, second: Any) -> bool:
    """Whether two rows' intervals meet; rows without an interval count as not told apart."""
    bounds = (first.low, first.high, second.low, second.high)
    if any(pd.isna(bound) for bound in bounds):
        return True
    return bool(first.low <= second.high and second.low <= first.high)
