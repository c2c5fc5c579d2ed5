"""What the machine, and not a file, is to blame for: no more open files, no memory, no permission, a disk that fails."""

import errno
import re
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import numpy as np

from diffusionlens.errors import InputError, in_short

_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
# What decoders provoke themselves when numbers in a damaged file send them to places that it does not have.
_OF_DAMAGE = (errno.EINVAL, errno.EOVERFLOW, errno.EDOM, errno.ERANGE)
_ORDINARY = 2**28  # bytes of a picture of 8,192 x 8,192 pixels
_MORE_FILES = (
    "allow more of them (`ulimit -n 65536`), or give fewer processes that read (--workers, --set run.workers=N)"
)
# What torch and Rust say of it where they have no number for it; a path in a message may hold any words.
_WORDS = re.compile(
    r"^(\w+Error: )?(too many open files|received \d+ items of ancdata)"
    r"|too many open files( \([a-z ]*\d+\))?\.?$|errno 2[34] on fopen",
    re.IGNORECASE | re.MULTILINE,
)


def regular(path: Path) -> Path:
    """`path` itself, unless it is a pipe, a socket or a device, which would be waited for without end.

    Raises:
        OSError: it is, or it can't be looked at.
    """
    mode = path.stat().st_mode
    if not S_ISREG(mode) and not S_ISDIR(mode):
        raise OSError(errno.ENOTSUP, "not a regular file")
    return path


def refuse_shortage(error: BaseException, doing: str) -> None:
    """Raises where the machine has run out of open files or memory; returns otherwise. Every picture could be next, so that
    skipping would leave the numbers to chance.

    Raises:
        InputError: says what was being done, and what to do.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in _TOO_MANY_FILES or (number is None and _WORDS.search(str(error))):
        raise InputError(f"{doing}: too many files are open; {_MORE_FILES}") from None
    if number == errno.ENOMEM or (isinstance(error, MemoryError) and not _has_memory()):
        raise InputError(
            f"{doing}: the machine has no memory left; give fewer --workers or a smaller --batch-size"
        ) from None


def reason_of(error: BaseException) -> str | None:
    """Why a file could not be read where that is not its content; None for damage."""
    if isinstance(error, MemoryError):
        return "takes more memory than there is (it is very large, or its header is damaged)"
    if not isinstance(error, OSError) or error.errno is None or error.errno in _OF_DAMAGE:
        return None
    why = error.strerror or type(error).__name__
    return f"may not be read ({why})" if error.errno in _FORBIDDEN else f"can't be read ({why})"


def unreadable(error: OSError, name: object, wanted: str) -> InputError:
    """The refusal of a file or folder without which a data set can't be opened.

    Raises:
        InputError: as `refuse_shortage`.
    """
    refuse_shortage(error, f"{name} can't be read")
    what = reason_of(error) or f"can't be read ({in_short(error)})"
    return InputError(f"{name} {what}; wanted {wanted}")


def _has_memory() -> bool:
    """Whether an ordinary picture would still find room, so that it was the file that asked for too much."""
    try:
        np.empty(_ORDINARY, np.uint8)  # asked for, and not touched
    except MemoryError:
        return False
    return True
