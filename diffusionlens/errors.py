"""Errors that a user sees as a single line: what came, what was wanted, what to do."""

from collections.abc import Iterable

_LONGEST = 2000  # characters of a message; names of strangers have any length


def printable(text: str) -> str:
    """One line; control characters, which a file name may hold, as escapes, so that a terminal does not obey them."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def in_short(error: object, longest: int = 300) -> str:
    """What another library says, on one line, for the brackets of a message; cut between words, and then with " ..."; the kind
    of the error where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= longest else text[:longest].rsplit(" ", 1)[0] + " ..."


def some(names: Iterable[object]) -> str:
    """The first four names, for a message."""
    known = [str(name) for name in names]
    return ", ".join(known[:4]) + (", ..." if len(known) > 4 else "")


class InputError(Exception):
    """The request or an input is wrong; the command prints the message and exits with status 2.

    Names of strangers (files, weights, options) stand in messages: characters that would break the line or steer a
    terminal are written as escapes, and what is too long to be read loses its middle.
    """

    def __init__(self, message: str) -> None:
        line = printable(message)
        half = _LONGEST // 2
        super().__init__(line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}")


class OtherProcessError(Exception):
    """Another process of this run failed, and its own message says why; the command exits with status 1."""
