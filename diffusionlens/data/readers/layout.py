"""Finding a data set's files below the root that was given, and saying what was looked for when they are not there."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath

from diffusionlens.conditions import refuse_shortage, unreadable
from diffusionlens.data.open_picture import SUFFIXES
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, expand_path

# Folders looked into for a suggestion; a wrong root may be a whole disk.
_SEARCHED = 200


def root_of(spec: Spec) -> Path:
    """The folder that a DATA string names.

    Raises:
        InputError: it is missing or not a folder.
    """
    if not spec.rest:
        raise InputError(f"'{spec.text}' names no folder; wanted {spec.kind}:ROOT")
    root = expand_path(spec.rest)
    try:
        is_folder, exists = root.is_dir(), root.exists()
    except OSError as error:  # a name too long for the system, or a folder that may not be entered
        refuse_shortage(error, f"'{spec.rest}' can't be looked at")
        raise InputError(f"'{spec.rest}' can't be looked at ({error.strerror}); wanted {spec.kind}:ROOT") from None
    if not is_folder:
        state = "is not a folder" if exists else "does not exist"
        raise InputError(f"{root} {state}; wanted the root folder of the pictures, as {spec.kind}:ROOT")
    return root


def first_existing(root: Path, candidates: Sequence[str], what: str, hint: str = "") -> Path:
    """The first of `candidates` (paths below `root`) that exists.

    Raises:
        InputError: none does; names them all, and `hint` or a folder close by where one does exist.
    """
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    present = ", ".join(sorted(entry.name for entry in root.iterdir())[:6]) or "nothing"
    near = None if hint else _near(root, candidates)
    hint = hint or (f"; did you mean {near}?" if near else "")
    raise InputError(f"{root} has no {what}: looked for {', '.join(candidates)}; found there: {present}{hint}")


def _near(root: Path, candidates: Sequence[str]) -> Path | None:
    """A folder one or two steps above or below `root` that has one of `candidates`."""
    parents = list(root.resolve().parents)[:2]
    below = islice((child for pattern in ("*", "*/*") for child in root.glob(pattern) if child.is_dir()), _SEARCHED)
    for folder in (*parents, *sorted(below)):
        try:
            if any((folder / candidate).exists() for candidate in candidates):
                return folder
        except OSError:  # a folder that may not be read
            continue
    return None


def pictures_below(folder: Path) -> list[Path]:
    """Every picture file below `folder`, in the order of their paths; hidden files are none, links are followed."""
    return sorted(_walk(folder, SUFFIXES))


def files_below(folder: Path, suffix: str) -> list[Path]:
    """Every file below `folder` with `suffix`, in any case, in the order of their paths."""
    return sorted(_walk(folder, {suffix}))


def _walk(folder: Path, suffixes: set[str]) -> Iterator[Path]:
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, onerror=refuse_folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link back to where we have been
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes:  # noqa: PTH122  (a million names)
                yield Path(place, name)


def refuse_folder(error: OSError) -> None:
    """Refuses a folder whose pictures would be missing without a word; one that is gone by now had none."""
    if isinstance(error, FileNotFoundError) or Path(str(error.filename)).name == "lost+found":
        return
    raise unreadable(error, error.filename, "every folder below the root readable, or a root without it")


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in `folder` that hold pictures, sorted: the classes of an ImageFolder layout."""
    entries = (entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return sorted(entry.name for entry in entries if next(_walk(entry, SUFFIXES), None) is not None)


def inside(root: Path, name: str) -> Path | None:
    """`root / name`, or None when the name is absolute or climbs out of `root` (links that stand there are followed)."""
    for flavour in (PurePosixPath(name), PureWindowsPath(name)):
        if flavour.is_absolute() or flavour.drive or flavour.root or ".." in flavour.parts:
            return None
    return root / name if name.strip() and "\0" not in name else None


def refuse_empty(names: Sequence[object], root: Path, what: str) -> None:
    """Raises InputError when there is no picture at all."""
    if not names:
        raise InputError(f"{root} holds no {what} (suffixes {', '.join(sorted(SUFFIXES))}); check the path")
