"""What a value should have been, in the words of this program and not in those of pydantic."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number that is finite",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
}
_BOUNDS = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number from {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number up to {}"),
}


def wanted(error: "ErrorDetails") -> str:
    """ "wanted ...", for one of a ValidationError's errors; what a validator of ours says as it is."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        return f"wanted {_KINDS[kind]}"
    if kind in _BOUNDS and _BOUNDS[kind][0] in context:
        key, words = _BOUNDS[kind]
        return f"wanted {words.format(_plain(context[key]))}"
    if kind == "literal_error":
        return f"wanted {context['expected']}"
    return error["msg"].removeprefix("Value error, ")


def _plain(bound: object) -> str:
    return f"{bound:.15g}" if isinstance(bound, float) else str(bound)
