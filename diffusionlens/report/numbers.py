"""How numbers are written for people."""

import math
import re
from typing import Any


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
    text = short(row.value)
    if math.isnan(row.low) or math.isnan(row.high):
        return text
    decimals = len(text.partition(".")[2]) if "e" not in text else None
    bounds = [f"{bound:.{decimals}f}" if decimals is not None else short(bound) for bound in (row.low, row.high)]
    return f"{text} ({bounds[0]} to {bounds[1]})"


def percent_with_interval(row: Any) -> str:
    """A share as `2.40 (2.10 to 2.80) %`."""
    if math.isnan(row.low) or math.isnan(row.high):
        return f"{short(100 * row.value)} %"
    text = short(100 * row.value)
    decimals = len(text.partition(".")[2]) if "e" not in text else 2
    return f"{text} ({100 * row.low:.{decimals}f} to {100 * row.high:.{decimals}f}) %"


def typeset(text: str) -> str:
    """A true minus sign, and no line break before a percent sign."""
    return re.sub(r"(?<![\w.+-])-(?=\d)", "\u2212", text).replace(" %", "\u00a0%")
