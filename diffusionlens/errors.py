"""Errors that a user sees as a single line: what came, what was wanted, what to do."""


class InputError(Exception):
    """The request or an input is wrong; the command prints the message and exits with status 2."""


class OtherProcessError(Exception):
    """Another process of this run failed, and its own message says why; the command exits with status 1."""
