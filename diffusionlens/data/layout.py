"""Finding a data set's files below the root that was given, and saying what was looked for when they are not there."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from diffusionlens.data.open_picture import SUFFIXES
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec


def root_of(spec: Spec) -> Path:
    """The folder that a DATA string names.

    Raises:
        InputError: it is missing or not a folder.
    """
    if not spec.rest:
        raise InputError(f"'{spec.text}' names no folder; wanted {spec.kind}:ROOT")
    root = Path(spec.rest).expanduser()
    if not root.is_dir():
        state = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"{root} {state}; wanted the root folder of the pictures, as {spec.kind}:ROOT")
    return root


def first_existing(root: Path, candidates: Sequence[str], what: str) -> Path:
    """The first of `candidates` (paths below `root`) that exists.

    Raises:
        InputError: none does; names them all.
    """
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    present = ", ".join(sorted(entry.name for entry in root.iterdir())[:6]) or "nothing"
    raise InputError(f"{root} has no {what}: looked for {', '.join(candidates)}; found there: {present}")


def pictures_below(folder: Path) -> list[Path]:
    """Every picture file below `folder`, in the order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in `folder` that hold pictures, sorted: the classes of an ImageFolder layout."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and pictures_below(entry))


def inside(root: Path, name: str) -> Path | None:
    """`root / name`, or None when the name leads out of `root`."""
    path = (root / name).resolve()
    return path if path.is_relative_to(root.resolve()) else None


def refuse_empty(names: Sequence[object] | Iterable[object], root: Path, what: str) -> None:
    """Raises InputError when there is no picture at all."""
    if not list(names):
        raise InputError(f"{root} holds no {what} (suffixes {', '.join(sorted(SUFFIXES))}); check the path")
