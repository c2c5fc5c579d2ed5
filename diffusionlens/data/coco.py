"""`coco`: COCO instances, through pycocotools; crowds are flagged, masks of polygons and of both RLE forms."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.coco_file import corner_and_size, instance_mask, read_coco, size_of
from diffusionlens.data.layout import first_existing, inside, root_of
from diffusionlens.data.open_picture import open_annotated
from diffusionlens.data.sample import IGNORE, Picture
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {"split": "train2017, val2017, ...; default val2017"}


class Coco:
    """COCO pictures of one split, in the order of their ids.

    `category` counts the file's categories from 0, in the order of their ids. Masks: 0 background, 1 + category, smaller
    objects over larger ones; 255 for crowds where no single object lies on them, for objects of unknown class, and over
    the box of an object without a usable outline. A file without any outline provides no masks.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        root = root_of(spec)
        split = spec.query.get("split", "val2017")
        present = sorted(path.stem.removeprefix("instances_") for path in root.glob("annotations/instances_*.json"))
        hint = f"; splits there: {', '.join(present)}" if present else ""
        annotations = first_existing(
            root, [f"annotations/instances_{split}.json"], f"instances of split '{split}'", hint
        )
        self.folder = first_existing(root, [split, f"images/{split}"], f"pictures of split '{split}'")
        self.label = spec.label or f"coco-{split}"
        self.spec = spec.text
        content = read_coco(annotations)
        self.classes: Sequence[str] = [str(category["name"]) for category in content.categories]
        self._category = {category["id"]: place for place, category in enumerate(content.categories)}
        self._instances = content.instances
        self.skipped: list[tuple[str, str]] = []
        self.pictures: list[dict[str, Any]] = []
        for picture in content.images:
            name = str(picture["file_name"])
            file = inside(self.folder, name)
            if file is None or not file.is_file():
                self.skipped.append((name, "listed, but the file does not exist"))
            elif size_of(picture) is None:
                self.skipped.append((name, "its entry states no width and height in pixels"))
            else:
                self.pictures.append(picture)
        if not self.pictures:
            raise InputError(f"{annotations} lists no picture that exists in {self.folder}")
        outlined = any(instance.get("segmentation") for found in self._instances.values() for instance in found)
        self.provides: frozenset[str] = frozenset({"boxes", "labels"} | ({"masks"} if outlined else set()))

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return str(self.pictures[index]["file_name"])

    def open(self, index: int) -> Picture:
        entry = self.pictures[index]
        name = self.name(index)
        image = open_annotated(self.folder / name, size_of(entry))
        boxes = BoxList(*image.size)
        painting = _Painting(image.height, image.width)
        for instance in self._instances.get(entry["id"], []):
            what = f"instance {instance.get('id')}"
            x, y, width, height = corner_and_size(instance)
            box = (x, y, x + width, y + height)
            key, crowd = instance.get("category_id"), instance.get("iscrowd") or 0
            category = self._category.get(key) if isinstance(key, int | str) else None
            outline = instance_mask(instance, (image.height, image.width)) if "masks" in self.provides else None
            if category is None:
                boxes.notes.append(f"{what}: unknown category {key}")
                painting.add(outline, box, None)
                continue
            if crowd not in (0, 1):
                boxes.notes.append(f"{what}: iscrowd is {str(crowd)[:20]!r}, wanted 0 or 1")
                painting.add(outline, box, None)
                continue
            boxes.add(box, category, crowd=bool(crowd), what=what)
            if outline is None and "masks" in self.provides:
                boxes.notes.append(f"{what}: its segmentation is not understood")
            painting.add(outline, box, None if crowd else category + 1)
        mask = painting.mask() if "masks" in self.provides else None
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]


class _Painting:
    """Instances laid over each other: what is unclear first, then objects from the largest to the smallest."""

    def __init__(self, height: int, width: int) -> None:
        self.unclear = torch.zeros(height, width, dtype=torch.bool)
        self.objects: list[tuple[Tensor, int]] = []

    def add(self, outline: Tensor | None, box: tuple[float, float, float, float], value: int | None) -> None:
        """An object of class `value` (None: to be ignored); without an outline all of its box is unclear."""
        if outline is not None and value is not None:
            self.objects.append((outline, value))
        elif outline is not None:
            self.unclear |= outline
        else:
            self.unclear |= self._pixels(box)

    def _pixels(self, box: tuple[float, float, float, float]) -> Tensor:
        """Every pixel that a box touches, none for one without area; all of them when it is not finite."""
        height, width = self.unclear.shape
        if not all(isfinite(value) for value in box):
            return torch.ones_like(self.unclear)
        x0, x1, y0, y1 = *sorted((box[0], box[2])), *sorted((box[1], box[3]))
        rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
        return (rows + 1 > y0) & (rows < y1) & (columns + 1 > x0) & (columns < x1)

    def mask(self) -> Tensor:
        """int64 [H,W]."""
        mask = torch.zeros(self.unclear.shape, dtype=torch.int64)
        mask[self.unclear] = IGNORE
        for outline, value in sorted(self.objects, key=lambda entry: int(entry[0].sum()), reverse=True):
            mask[outline] = value
        return mask
