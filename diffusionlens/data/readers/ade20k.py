"""`ade20k`: ADE20K scene parsing as in the challenge (ADEChallengeData2016), 150 classes."""

import csv
import re
from collections import Counter
from pathlib import Path

from diffusionlens.conditions import unreadable
from diffusionlens.data.readers.layout import first_existing, root_of
from diffusionlens.data.readers.mask_values import IndexValues
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.readers.splits import chosen_split, pairs_by_name
from diffusionlens.data.sample import IGNORE
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

COUNT = 150

_QUERY = {"split": "training or validation, default validation"} | COUNT_OPTION


def ade20k(spec: Spec) -> PairedPictures:
    """ADE20K pictures with masks: stored 1..150 are the classes 0..149, stored 0 (unlabelled) is ignored.

    Names come from objectInfo150.txt or .csv, the first synonym; without either they are the stored numbers.

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    pictures = first_existing(
        root_of(spec), ["images", "ADEChallengeData2016/images"], "ADE20K pictures (images, annotations)"
    )
    root = pictures.parent
    present = [folder.name for folder in pictures.glob("*") if (root / "annotations" / folder.name).is_dir()]
    split = chosen_split(spec, present, "validation", root)
    annotations = root / "annotations" / split
    pairs, skipped = pairs_by_name(pictures / split, annotations, ("", ""), "mask")
    values = {0: IGNORE, IGNORE: IGNORE} | {stored: stored - 1 for stored in range(1, COUNT + 1)}
    return PairedPictures(
        spec, split, pairs, skipped, IndexValues(values, f"0..{COUNT} or 255"), annotations, _names(root)
    )


def _names(root: Path) -> list[str]:
    """The classes' names in the order of their numbers.

    Raises:
        InputError: the file that should name them does not.
    """
    path = next((root / name for name in ("objectInfo150.txt", "objectInfo150.csv") if (root / name).is_file()), None)
    if path is None:
        return [str(stored) for stored in range(1, COUNT + 1)]
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))
    except OSError as error:
        raise unreadable(error, path, "a table of classes") from None
    except csv.Error as error:
        raise InputError(f"{path} is no table of classes ({error}); wanted the columns Idx and Name") from None
    found = {str(row.get("Idx") or "").strip(): str(row.get("Name") or "").strip() for row in rows}
    full = [found.get(str(stored), "") for stored in range(1, COUNT + 1)]
    if not all(full):
        raise InputError(f"{path} names {sum(map(bool, full))} of {COUNT} classes; wanted the columns Idx and Name")
    first = [re.split("[,;]", name)[0].strip() for name in full]
    shared = Counter(first)
    return [short if shared[short] == 1 else whole for short, whole in zip(first, full, strict=True)]
