"""COCO's instances and panoptic files, checked entry by entry before anything is believed, and its masks."""

import json
import warnings
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_tools
from torch import Tensor

from diffusionlens.conditions import regular, unreadable
from diffusionlens.data.sample import IGNORE
from diffusionlens.errors import InputError, in_short


@dataclass
class CocoFile:
    """The pictures in the order of their ids, the categories in the order of theirs, the annotations by picture id:
    instances, or the one panoptic annotation."""

    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    instances: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)


def read_coco(path: Path) -> CocoFile:
    """Reads an instances file.

    Raises:
        InputError: not JSON, not COCO instances, or an id that is unusable or given twice.
    """
    return _read(path, ("image_id",))


def read_panoptic(path: Path) -> CocoFile:
    """Reads a panoptic file: each picture has one annotation with `file_name` and a list `segments_info`.

    Raises:
        InputError: not JSON, not COCO panoptic, or an id that is unusable or given twice.
    """
    content = _read(path, ("image_id", "file_name", "segments_info"))
    for key, annotations in content.instances.items():
        if len(annotations) > 1:
            raise InputError(f"{path}: picture {key} has {len(annotations)} annotations; wanted one with all segments")
        segments = annotations[0]["segments_info"]
        sound = isinstance(segments, list) and all(
            isinstance(segment, dict) and _is_id(segment.get("id")) and _is_id(segment.get("category_id"))
            for segment in segments
        )
        if not sound:
            raise InputError(f"{path}: picture {key} has segments_info without id or category_id; not COCO panoptic")
    if any(isinstance(category["id"], int) and not 0 < category["id"] < IGNORE for category in content.categories):
        raise InputError(f"{path}: 'categories' has an id outside 1..{IGNORE - 1}; not COCO panoptic")
    return content


def _read(path: Path, keys: tuple[str, ...]) -> CocoFile:
    try:
        content = json.loads(regular(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise unreadable(error, path, "a COCO file (images, annotations, categories)") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({in_short(error)}); download it again") from None
    images = _entries(content, "images", ("id", "file_name", "width", "height"), path)
    categories = _entries(content, "categories", ("id", "name"), path)
    annotations: dict[Any, list[dict[str, Any]]] = {}
    for annotation in _entries(content, "annotations", keys, path):
        if not _is_id(annotation["image_id"]):
            raise InputError(
                f"{path}: 'annotations' has the image_id {str(annotation['image_id'])[:40]}; wanted a number"
            )
        annotations.setdefault(annotation["image_id"], []).append(annotation)
    return CocoFile(_by_id(images, "images", path), _by_id(categories, "categories", path), annotations)


def _entries(content: Any, part: str, keys: tuple[str, ...], path: Path) -> list[dict[str, Any]]:
    entries = content.get(part) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{path} has no list '{part}'; wanted a COCO file (images, annotations, categories)")
    for place, entry in enumerate(entries):
        lacking = [key for key in keys if not isinstance(entry, dict) or key not in entry]
        if lacking:
            raise InputError(
                f"{path}: entry {place} of '{part}' lacks {', '.join(lacking)}; not a COCO file of this kind"
            )
    return entries


def _by_id(entries: list[dict[str, Any]], part: str, path: Path) -> list[dict[str, Any]]:
    seen: set[Any] = set()
    for entry in entries:
        if not _is_id(entry["id"]) or entry["id"] in seen:
            what = "twice" if _is_id(entry["id"]) else "as an id"
            raise InputError(f"{path}: '{part}' has {str(entry['id'])[:40]} {what}; wanted one number each")
        seen.add(entry["id"])
    return sorted(entries, key=lambda entry: (isinstance(entry["id"], str), entry["id"]))


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str)


def size_of(image: dict[str, Any]) -> tuple[int, int] | None:
    """The stated (width, height); None where they are no whole numbers of pixels."""
    size = (image["width"], image["height"])
    whole = all(isinstance(side, int | float) and isfinite(side) and side >= 1 and side == int(side) for side in size)
    return (int(size[0]), int(size[1])) if whole else None


def corner_and_size(instance: dict[str, Any]) -> tuple[float, float, float, float]:
    """The box as (x, y, width, height), NaN where it is no box."""
    try:
        x, y, width, height = (float(value) for value in instance["bbox"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return (float("nan"),) * 4
    return x, y, width, height


def box_fault(instance: dict[str, Any]) -> str | None:
    """What is wrong with a box that is none, in words of the file."""
    if "bbox" not in instance:
        return "it has no bbox"
    if all(isfinite(value) for value in corner_and_size(instance)):
        return None
    return f"its bbox is {str(instance['bbox'])[:80]}, wanted four numbers: x, y, width, height"


def instance_mask(instance: dict[str, Any], size: tuple[int, int]) -> Tensor | None:
    """The pixels of an instance, bool [H,W], from polygons or either form of RLE; None where they are not understood.

    pycocotools is C that trusts its input (a far polygon ends the process), so that is checked first.
    """
    outline = instance.get("segmentation")
    height, width = size
    if not (_sound_polygons(outline, size) if isinstance(outline, list) else _sound_rle(outline, size)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of pycocotools' own use of NumPy 2
            if isinstance(outline, list):
                packed = rle_tools.merge(rle_tools.frPyObjects(outline, height, width))
            elif isinstance(outline["counts"], list):  # type: ignore[index]
                packed = rle_tools.frPyObjects(outline, height, width)
            else:
                packed = outline
            found = np.asarray(rle_tools.decode(packed), dtype=bool)
    except Exception:  # pycocotools raises of every kind on a damaged RLE
        return None
    return torch.from_numpy(found) if found.shape == size else None


def _sound_polygons(polygons: list[Any], size: tuple[int, int]) -> bool:
    """Each at least three points, all near the picture."""
    height, width = size

    def near(value: Any, side: int) -> bool:
        return isinstance(value, int | float) and -side <= value <= 2 * side  # false for NaN

    return bool(polygons) and all(
        isinstance(points, list)
        and len(points) >= 6
        and len(points) % 2 == 0
        and all(near(x, width) and near(y, height) for x, y in zip(points[::2], points[1::2], strict=True))
        for points in polygons
    )


def _sound_rle(outline: Any, size: tuple[int, int]) -> bool:
    """Of the picture's size; counts, where they are not packed, that fill it exactly."""
    if not isinstance(outline, dict) or list(outline.get("size") or []) != list(size):
        return False
    counts = outline.get("counts")
    if isinstance(counts, list):
        whole = all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
        return whole and sum(counts) == size[0] * size[1]
    return isinstance(counts, str) and counts.isascii()
