"""A result directory that is whole or not there: what it may hold, whether it can be made, and how it takes its place."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from diffusionlens.errors import InputError
from diffusionlens.locks import temporary_directory
from diffusionlens.spec import given_path

CONTENTS = {
    "index.html": "the page",
    "results.csv": "the tidy table",
    "per_image.csv.gz": "per-picture values",
    "manifest.json": "what was measured, with what and how",
    "figures": "every figure as PNG and PDF",
    "heads": "trained heads of a probe, one file a model",
    "tables": "compact tables as CSV, Markdown and LaTeX",
}
"""Every name that any command writes at the top of a result directory. A directory that holds nothing else may be replaced
by the next run, so whoever writes a new name declares it here; `whole_directory` refuses to finish one that is not."""

_CLUTTER = {".DS_Store", "Thumbs.db", "desktop.ini"}
_LONGEST = Path("figures") / ("x" * 40)  # at least as long as the path of any file inside
_PROBE_BYTES = 2**20  # a full disk takes an empty file and no more; a page with figures is some times larger
_TRIES = 5


def check_target(out: Path | str) -> Path:
    """Refuses a target that can't be made or is not ours to replace, before any work is done.

    Besides asking what can be asked, it makes a directory beside the target and removes it again, with the parents that
    were missing: no list of rules knows every file system.

    Returns:
        The place that will be made: absolute, `~` and links followed.

    Raises:
        InputError: `out` is a file, a mount point, a link to nothing or the current directory, holds something that is not a
            result, or can't be made or replaced.
    """
    try:
        place = _place(out)
        _check_kind(out, place)
        _check_contents(place)
        with _beside(place) as temporary:
            probe = temporary / place.name / _LONGEST
            probe.parent.mkdir(parents=True)
            probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        raise InputError(f"--out {out} can't be made ({error.strerror or error}); choose another directory") from None
    return place


def _place(out: Path | str) -> Path:
    text = os.fspath(out)
    if "\0" in text:
        raise InputError("--out holds a NUL byte, which no name may; wanted a directory to make")
    try:
        os.fsencode(text)
        path = given_path("--out", text, "a directory to make")
        if path.is_symlink() and not path.exists():
            raise InputError(f"--out {out} is a link to nothing; remove it or choose another directory")
        return path.resolve()
    except (RuntimeError, UnicodeEncodeError) as error:  # an unknown ~user, links in a circle, no text
        raise InputError(f"--out {out} is no path here ({error}); choose another directory") from None


def _check_kind(out: Path | str, place: Path) -> None:
    """Everything that is known not to work, with words of its own."""
    if place.exists() and not place.is_dir():
        raise InputError(f"--out {out} is a file; wanted a directory to make")
    if place == Path.cwd() or place in Path.cwd().parents:
        raise InputError(f"--out {out} is the directory you are in, or above it; name a new one inside")
    if os.path.ismount(place):
        raise InputError(
            f"--out {out} is a mount point, which can't be replaced; name a directory inside, as {place / 'result'}"
        )
    nearest = next(parent for parent in place.parents if parent.exists())
    if not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file, and no directory can be made in it; choose another one")
    if not _writable(nearest):
        raise InputError(f"--out {out}: {nearest} can't be written to; choose another directory")
    if place.exists() and (not _writable(place) or _held_by_others(place)):
        raise InputError(f"--out {out} is there and can't be replaced by you; choose another directory")


def _writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _held_by_others(place: Path) -> bool:
    """Whether `place` lies in a directory like /tmp, where only its owner may rename it."""
    if not hasattr(os, "geteuid"):
        return False
    parent = place.parent.stat()
    return bool(parent.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, parent.st_uid, place.stat().st_uid)


def _check_contents(place: Path) -> None:
    """A directory may be replaced when it is empty, or a result and nothing but a result."""
    if not place.is_dir():
        return
    try:
        names = {path.name for path in place.iterdir()} - _CLUTTER
    except OSError as error:
        raise InputError(f"--out {place} can't be read ({error.strerror}); choose another directory") from None
    if not names:
        return
    if not {"manifest.json", "results.csv"} <= names:
        raise InputError(
            f"--out {place} holds something that is not a result of diffusionlens; choose another directory"
        )
    if strange := sorted(names - set(CONTENTS)):
        raise InputError(
            f"--out {place} holds an earlier result and also {strange[0]}, which would be lost; move that away or choose "
            f"another directory"
        )


@contextmanager
def whole_directory(out: Path | str, room: Path | None = None) -> Iterator[Path]:
    """A temporary directory beside `out`, or in `room` beside it, that takes its name when the block ends well, and vanishes when
    it does not.

    Raises:
        InputError: see `check_target`; the disk is full; or another hand was in `out` meanwhile: then the new result, which
            is whole, stays under the name that the message gives.
    """
    place = check_target(out)
    try:
        with _beside(place, room) as temporary:
            temporary.chmod(0o755)
            yield temporary
            undeclared = {path.name for path in temporary.iterdir()} - set(CONTENTS)
            if undeclared:
                raise AssertionError(
                    f"{sorted(undeclared)} not declared in pages/directory.py; the next run would balk"
                )
            _take_place(temporary, place)
    except OSError as error:
        raise InputError(
            f"--out {out} could not be written ({error.strerror or error}); nothing was left there"
        ) from None


@contextmanager
def _beside(place: Path, room: Path | None = None) -> Iterator[Path]:
    """A new directory beside `place` or in `room`, gone afterwards; parents made for it go too when `place` has not
    come to be."""
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        with ExitStack() as stack:
            for left in reversed(range(_TRIES)):
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    temporary = stack.enter_context(temporary_directory(room or place.parent))
                    break
                except FileNotFoundError:  # another run that only tried has taken its empty parents back
                    if not left:
                        raise
            yield temporary
    finally:
        if not os.path.exists(place):  # noqa: PTH110  (the method raises for a name that is too long)
            for parent in missing:
                with suppress(OSError):  # somebody has put something there since
                    parent.rmdir()


def _take_place(temporary: Path, place: Path) -> None:
    """Gives `temporary` the name `place`. A result that is whole is not thrown away because it may not have that name."""
    try:
        _check_contents(place)  # again: measuring may have taken hours
        _swap(temporary, place)
    except (OSError, InputError) as error:
        kept = temporary.with_name(temporary.name.removeprefix("."))
        temporary.replace(kept)
        if isinstance(error, OSError):
            error = InputError(f"--out {place} could not be given its name ({error.strerror or error})")
        raise InputError(f"{error}. The new result is whole, in {kept}") from None


def _swap(temporary: Path, place: Path) -> None:
    """What stands at `place` is kept until the new one stands there."""
    if not place.exists():
        temporary.replace(place)
        return
    old = Path(tempfile.mkdtemp(prefix=".diffusionlens-old-", dir=place.parent))
    previous = old / "previous"
    try:
        place.replace(previous)
    except OSError:
        old.rmdir()
        raise
    try:
        temporary.replace(place)
    except OSError as error:
        try:
            previous.replace(place)
        except OSError:
            raise InputError(
                f"--out {place} could not be replaced ({error}); the earlier result is in {previous}"
            ) from None
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)  # only now is there nothing in it to lose
