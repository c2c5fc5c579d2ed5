"""`coco`: COCO instances, through pycocotools; crowds are flagged, masks of polygons and of both RLE forms, or of
everything from the panoptic or semantic PNGs."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.open_picture import open_annotated
from diffusionlens.data.readers.coco_file import CocoFile, box_fault, corner_and_size, instance_mask, read_coco, size_of
from diffusionlens.data.readers.coco_panoptic import FullMasks
from diffusionlens.data.readers.layout import first_existing, root_of
from diffusionlens.data.readers.splits import chosen, file_inside, given_list, read_list, splits_there
from diffusionlens.data.sample import IGNORE, Picture, UnreadablePicture
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {
    "split": "train2017, val2017, ...; default val2017",
    "masks": "instances (default), panoptic or semantic",
    "list": "file of picture names, one a line, that are used alone",
} | COUNT_OPTION


class Coco:
    """COCO pictures of one split, in the order of their ids.

    `category` counts the file's categories from 0, in the order of their ids. Masks: 0 background, 1 + category, smaller
    objects over larger ones; 255 for crowds where no single object lies on them, for objects of unknown class, and over
    the box of an object without a usable outline. A file without any outline provides no masks.

    `?masks=panoptic` and `semantic` take the masks from `FullMasks` instead; boxes are those of the instances file where
    there is one.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        root = root_of(spec)
        split = spec.query.get("split", "val2017")
        kind = chosen(spec, "masks", ["instances", "panoptic", "semantic"])
        self._full = None if kind == "instances" else FullMasks(root, split, kind)
        content = self._instances_file(root, split)
        self.folder = first_existing(root, [split, f"images/{split}"], f"pictures of split '{split}'")
        self.label = spec.label or f"coco-{split}"
        self.spec = spec.text
        boxes = content is not None
        if content is None:
            assert self._full is not None
            content = CocoFile(self._full.content.images, [])
        self.classes: Sequence[str] = [str(category["name"]) for category in content.categories]
        self._category = {category["id"]: place for place, category in enumerate(content.categories)}
        self._instances = content.instances
        self.skipped: list[tuple[str, str]] = []
        listing = given_list(spec, root)
        images = content.images if listing is None else self._listed(content.images, listing)
        self.pictures = [picture for picture in images if self._usable(picture)]
        if not self.pictures:
            first = f"; first of {len(self.skipped)}: {': '.join(self.skipped[0])}" if self.skipped else ""
            raise InputError(
                f"{listing or root / 'annotations'} lists no picture that can be used in {self.folder}{first}"
            )
        self._outlined = self._full is None and any(
            instance.get("segmentation") for found in self._instances.values() for instance in found
        )
        self.provides: frozenset[str] = frozenset({"boxes", "labels"} if boxes else ())
        self.mask_classes: Sequence[str] = ()
        if self._full is not None:
            self.mask_classes = self._full.classes
            self.classes = self.classes if boxes else self.mask_classes
            self.provides |= {"masks", "parsing"}
        elif self._outlined:
            self.mask_classes = ("background", *self.classes)
            self.provides |= {"masks"}

    def _instances_file(self, root: Path, split: str) -> CocoFile | None:
        """The instances of the split; None where the masks of everything do without them."""
        name = f"annotations/instances_{split}.json"
        if self._full is not None and not (root / name).is_file():
            return None
        present = [path.stem.removeprefix("instances_") for path in root.glob("annotations/instances_*.json")]
        hint = splits_there(present, split)
        return read_coco(first_existing(root, [name], f"instances of split '{split}'", hint))

    def _listed(self, images: list[dict[str, Any]], listing: Path) -> list[dict[str, Any]]:
        """The entries whose name, with or without its suffix, is in the list; names that fit none are said."""
        names = {line[0] for line in read_list(listing)}
        found = [image for image in images if names & _called(image)]
        unknown = names - {name for image in found for name in _called(image)}
        self.skipped += [(name, f"in {listing.name}, but not in the annotations") for name in sorted(unknown)]
        return found

    def _usable(self, picture: dict[str, Any]) -> bool:
        """Whether the files of an entry are there and it states a size; names it when not."""
        name = str(picture["file_name"])
        reason = None
        if file_inside(self.folder, name) is None:
            reason = "listed, but the file does not exist"
        elif size_of(picture) is None:
            reason = "its entry states no width and height in pixels"
        elif self._full is not None and self._full.file(picture) is None:
            reason = f"it has no {self._full.kind} mask"
        if reason is not None:
            self.skipped.append((name, reason))
        return reason is None

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return str(self.pictures[index]["file_name"])

    def open(self, index: int) -> Picture:
        entry = self.pictures[index]
        name = self.name(index)
        image = open_annotated(self.folder / name, size_of(entry))
        boxes = BoxList(*image.size)
        marks: list[_Mark] = []
        for instance in self._instances.get(entry["id"], []):
            what = f"instance {instance.get('id')}"
            x, y, width, height = corner_and_size(instance)
            box = (x, y, x + width, y + height)
            key, crowd = instance.get("category_id"), instance.get("iscrowd") or 0
            category = self._category.get(key) if isinstance(key, int | str) else None
            outline = instance_mask(instance, (image.height, image.width)) if self._outlined else None
            if category is None:
                boxes.notes.append(f"{what}: unknown category {key}")
                marks.append((outline, box, None))
                continue
            if crowd not in (0, 1):
                boxes.notes.append(f"{what}: iscrowd is {str(crowd)[:20]!r}, wanted 0 or 1")
                marks.append((outline, box, None))
                continue
            if (fault := box_fault(instance)) is not None:
                boxes.notes.append(f"{what}: {fault}")
            else:
                boxes.add(box, category, f"{instance['bbox']} (x, y, width, height)", crowd=bool(crowd), what=what)
            if outline is None and self._outlined:
                boxes.notes.append(f"{what}: its segmentation is not understood")
            marks.append((outline, box, None if crowd else category + 1))
        mask = _painted(marks, image.height, image.width) if self._outlined else None
        if self._full is not None:
            path = self._full.file(entry)
            if path is None:
                raise UnreadablePicture(name, f"it has no {self._full.kind} mask any more")
            mask, notes = self._full.read(entry, path, image.size, self.folder / name)
            boxes.notes += notes
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]


def _called(image: dict[str, Any]) -> set[str]:
    name = str(image["file_name"])
    return {name, PurePosixPath(name).stem}


_Mark = tuple[Tensor | None, tuple[float, float, float, float], int | None]
"""Outline, box and class of an object; without a class it is to be ignored, without an outline all of its box is unclear."""


def _painted(marks: Sequence[_Mark], height: int, width: int) -> Tensor:
    """Objects laid over each other, int64 [H,W]: what is unclear first, then objects from the largest to the smallest."""
    mask = torch.zeros(height, width, dtype=torch.int64)
    for outline, box, value in marks:
        if outline is None:
            mask[_pixels(box, height, width)] = IGNORE
        elif value is None:
            mask[outline] = IGNORE
    objects = [(outline, value) for outline, _, value in marks if outline is not None and value is not None]
    for outline, value in sorted(objects, key=lambda entry: int(entry[0].sum()), reverse=True):
        mask[outline] = value
    return mask


def _pixels(box: tuple[float, float, float, float], height: int, width: int) -> Tensor:
    """Every pixel that a box touches, none for one without area; all of them when it is not finite. bool [H,W]."""
    if not all(isfinite(value) for value in box):
        return torch.ones(height, width, dtype=torch.bool)
    x0, x1, y0, y1 = *sorted((box[0], box[2])), *sorted((box[1], box[3]))
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    return (rows + 1 > y0) & (rows < y1) & (columns + 1 > x0) & (columns < x1)
