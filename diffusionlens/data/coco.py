"""`coco`: COCO instances, through pycocotools; crowds are flagged, masks of polygons and of both RLE forms."""

import contextlib
import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torch import Tensor

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.layout import first_existing, inside, root_of
from diffusionlens.data.open_picture import open_rgb
from diffusionlens.data.sample import IGNORE, Picture, UnreadablePicture
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {"split": "train2017, val2017, ...; default val2017"}


class Coco:
    """COCO pictures of one split, in the order of their ids.

    `category` counts the file's categories from 0, in the order of their ids. Masks: 0 background, 1 + category, smaller
    objects over larger ones, 255 for crowds.
    """

    provides: frozenset[str] = frozenset({"boxes", "masks", "labels"})

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        root = root_of(spec)
        split = spec.query.get("split", "val2017")
        annotations = first_existing(root, [f"annotations/instances_{split}.json"], f"instances of split '{split}'")
        self.folder = first_existing(root, [split, f"images/{split}"], f"pictures of split '{split}'")
        self.label = spec.label or f"coco-{split}"
        self.spec = spec.text
        self.coco = _index(annotations)
        categories = sorted(self.coco.dataset["categories"], key=lambda category: int(category["id"]))
        self.classes: Sequence[str] = [str(category["name"]) for category in categories]
        self._category = {category["id"]: place for place, category in enumerate(categories)}
        self.skipped: list[tuple[str, str]] = []
        self.pictures: list[dict[str, Any]] = []
        for key in sorted(self.coco.imgs):
            picture = self.coco.imgs[key]
            file = inside(self.folder, str(picture["file_name"]))
            if file is None or not file.is_file():
                self.skipped.append((str(picture["file_name"]), "listed, but the file does not exist"))
            else:
                self.pictures.append(picture)
        if not self.pictures:
            raise InputError(f"{annotations} lists no picture that exists in {self.folder}")

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return str(self.pictures[index]["file_name"])

    def open(self, index: int) -> Picture:
        entry = self.pictures[index]
        name = str(entry["file_name"])
        size = (int(entry["width"]), int(entry["height"]))
        image = open_rgb(self.folder / name, size)
        if size != image.size:
            found = f"{image.width}x{image.height}"
            raise UnreadablePicture(name, f"the picture is {found}, its annotation says {size[0]}x{size[1]}")
        boxes = BoxList(*image.size)
        mask = torch.zeros(image.height, image.width, dtype=torch.int64)
        instances = self.coco.loadAnns(self.coco.getAnnIds(imgIds=entry["id"]))
        for instance in sorted(instances, key=_area, reverse=True):
            what = f"instance {instance.get('id')}"
            category = self._category.get(instance.get("category_id"))
            x, y, width, height = _corner_and_size(instance)
            if category is None:
                boxes.notes.append(f"{what}: unknown category {instance.get('category_id')}")
                continue
            crowd = bool(instance.get("iscrowd", 0))
            boxes.add((x, y, x + width, y + height), category, crowd=crowd, what=what)
            inside_object = self._mask(instance, (image.height, image.width))
            if inside_object is None:
                boxes.notes.append(f"{what}: its segmentation is not understood")
            else:
                mask[inside_object] = IGNORE if crowd else category + 1
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]

    def _mask(self, instance: dict[str, Any], size: tuple[int, int]) -> Tensor | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of pycocotools' own use of NumPy 2
                found = np.asarray(self.coco.annToMask(instance), dtype=bool)
        except Exception:  # pycocotools' C code raises of every kind on a damaged polygon or RLE
            return None
        return torch.from_numpy(found) if found.shape == size else None


def _index(path: Path) -> COCO:
    """The annotations, checked before pycocotools sees them, so that a damaged file is one clear line."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(
            f"{path} is not valid JSON ({' '.join(str(error).split())[:120]}); download it again"
        ) from None
    wanted = {
        "images": ("id", "file_name", "width", "height"),
        "annotations": ("image_id",),
        "categories": ("id", "name"),
    }
    for part, keys in wanted.items():
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise InputError(f"{path} has no list '{part}'; wanted COCO instances (images, annotations, categories)")
        for place, entry in enumerate(entries):
            lacking = [key for key in keys if not isinstance(entry, dict) or key not in entry]
            if lacking:
                raise InputError(f"{path}: entry {place} of '{part}' lacks {', '.join(lacking)}; not COCO instances")
    coco = COCO()
    coco.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def _corner_and_size(instance: dict[str, Any]) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = (float(value) for value in instance["bbox"])
    except (KeyError, TypeError, ValueError):
        return (float("nan"),) * 4
    return x, y, width, height


def _area(instance: dict[str, Any]) -> float:
    _, _, width, height = _corner_and_size(instance)
    return width * height if width * height == width * height else 0.0
