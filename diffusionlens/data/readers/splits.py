"""Which pictures: the split that was asked for, lists of files, and pairs of picture and annotation."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from stat import S_ISREG

from diffusionlens.conditions import regular, unreadable
from diffusionlens.data.readers.layout import inside, pictures_below
from diffusionlens.data.readers.pairs import Pair
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, given_path

# So many lines of a list show which folder its paths start from.
_TRIED = 20

# What stands for a frame without annotation; the lists of BTS write None.
_NONE = ("", "None")


def splits_there(names: Iterable[str], wanted: str) -> str:
    """The end of a message about a split that is missing: which there are, and the nearest."""
    present = sorted(set(names))
    near = get_close_matches(wanted, present, n=1)
    listed = f"; splits there: {', '.join(present)}" if present else ""
    return listed + (f"; did you mean '{near[0]}'?" if near else "")


def chosen_split(spec: Spec, present: Iterable[str], default: str, where: Path) -> str:
    """`?split=`, or `default`.

    Raises:
        InputError: it is none of `present`; names these and the nearest.
    """
    split, present = spec.query.get("split", default), list(present)
    if split not in present:
        there = splits_there(present, split) or "; found none at all, check the root"
        raise InputError(f"{where} has no split '{split}'{there}")
    return split


def chosen(spec: Spec, key: str, values: Sequence[str]) -> str:
    """The option `key`, one of `values`, the first when it is not given.

    Raises:
        InputError: it is another.
    """
    value = spec.query.get(key, values[0])
    if value not in values:
        near = get_close_matches(value, values, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"?{key}={value} in '{spec.text}'; wanted {' or '.join(values)}{hint}")
    return value


def read_list(path: Path) -> list[list[str]]:
    """The fields of every line that has any.

    Raises:
        InputError: it can't be read.
    """
    try:
        text = regular(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise unreadable(error, path, "a list of pictures") from None
    return [fields for line in text.splitlines() if (fields := line.split())]


def given_list(spec: Spec, root: Path) -> Path | None:
    """The file of `?list=`, as given or below `root`; None when the option is not used.

    Raises:
        InputError: neither exists.
    """
    if "list" not in spec.query:
        return None
    given = given_path(f"?list in '{spec.text}'", spec.query["list"], "a file of picture names")
    for path in (given, root / given):
        if path.is_file():
            return path
    raise InputError(f"?list={spec.query['list']} in '{spec.text}' is no file, neither as given nor in {root}")


def file_inside(folder: Path, name: str) -> Path | None:
    """The file `name` below `folder`; None when there is none or the name leads out.

    One that may not be looked at is taken to be there: whoever opens it is told why it can't be.
    """
    path = inside(folder, name)
    try:
        return path if path is not None and S_ISREG(path.stat().st_mode) else None
    except PermissionError:
        return path
    except (OSError, ValueError):  # none, or a name that the file system does not take
        return None


def _likely_first(bases: Sequence[Path], names: Sequence[str]) -> list[Path]:
    """`bases`, those first from which more of the first `names` exist."""
    tried = [name for name in names if name not in _NONE][:_TRIED]
    return sorted(bases, key=lambda base: -sum(file_inside(base, name) is not None for name in tried))


def _found(bases: Sequence[Path], name: str) -> Path | None:
    return next((path for base in bases if (path := file_inside(base, name)) is not None), None)


def listed_pairs(
    lines: Sequence[Sequence[str]], picture_bases: Sequence[Path], annotation_bases: Sequence[Path], what: str
) -> tuple[list[Pair], list[tuple[str, str]]]:
    """Pairs of a list of 'picture annotation ...', and what of it is missing, by name.

    A leading slash means the folder that the list is for, as in the lists of BTS; nothing outside it is ever read.

    Args:
        picture_bases, annotation_bases: folders that the paths may start from.
        what: the annotation, for the reason.
    """
    entries = [([field.lstrip("/\\") for field in line[:2]] + [""])[:2] for line in lines]
    picture_bases = _likely_first(picture_bases, [picture for picture, _ in entries])
    annotation_bases = _likely_first(annotation_bases, [annotation for _, annotation in entries])
    pairs: list[Pair] = []
    skipped: list[tuple[str, str]] = []
    for picture, annotation in entries:
        if annotation in _NONE:
            skipped.append((picture, f"listed without a {what}"))
        elif (picture_file := _found(picture_bases, picture)) is None:
            skipped.append((picture, "listed, but the file does not exist"))
        elif (annotation_file := _found(annotation_bases, annotation)) is None:
            skipped.append((picture, f"its {what} {annotation} does not exist"))
        else:
            pairs.append(Pair(picture, picture_file, annotation_file))
    return pairs, skipped


def pairs_by_name(
    pictures: Path, annotations: Path, replace: tuple[str, str], what: str
) -> tuple[list[Pair], list[tuple[str, str]]]:
    """Pairs of every picture below `pictures` with the PNG of its place below `annotations`, and pictures without one.

    Args:
        replace: the end of a picture's stem, and what the annotation's stem has there.
    """
    pairs: list[Pair] = []
    skipped: list[tuple[str, str]] = []
    for picture in pictures_below(pictures):
        relative = picture.relative_to(pictures)
        stem = relative.stem.removesuffix(replace[0]) + replace[1]
        annotation = annotations / relative.parent / f"{stem}.png"
        if annotation.is_file():
            pairs.append(Pair(relative.as_posix(), picture, annotation))
        else:
            skipped.append((relative.as_posix(), f"its {what} {annotation.name} does not exist"))
    return pairs, skipped
