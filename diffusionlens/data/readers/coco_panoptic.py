"""COCO's masks of everything, things and stuff: panoptic PNGs with their segments, or semantic index PNGs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffusionlens.data.open_picture import check_size, open_colour_codes, open_index_mask
from diffusionlens.data.readers.coco_file import CocoFile, read_panoptic
from diffusionlens.data.readers.layout import first_existing
from diffusionlens.data.readers.mask_values import translate
from diffusionlens.data.readers.splits import file_inside, splits_there
from diffusionlens.data.sample import IGNORE


class FullMasks:
    """Masks of one split in which every pixel is of a class (133 in COCO 2017, in the order of their ids) or ignored.

    panoptic: annotations/panoptic_SPLIT/NAME.png with panoptic_SPLIT.json; a pixel's segment is R + 256 G + 256^2 B, 0 is
    void. Crowds are of their class, as in COCO's own conversion to semantic masks. semantic: annotations/semantic_SPLIT/
    NAME.png, values are category ids, 0 is void; the same JSON names them.

    Raises:
        InputError: the files are not there, or the JSON is not COCO panoptic.
    """

    def __init__(self, root: Path, split: str, kind: str) -> None:
        present = [path.stem.removeprefix("panoptic_") for path in root.glob("annotations/panoptic_*.json")]
        hint = splits_there(present, split)
        file = first_existing(root, [f"annotations/panoptic_{split}.json"], f"panoptic file of split '{split}'", hint)
        self.kind = kind
        self.folder = first_existing(root, [f"annotations/{kind}_{split}"], f"{kind} masks of split '{split}'")
        self.content: CocoFile = read_panoptic(file)
        self.classes: Sequence[str] = [str(category["name"]) for category in self.content.categories]
        self._number = {category["id"]: place for place, category in enumerate(self.content.categories)}
        self._values = {0: IGNORE, IGNORE: IGNORE} | {
            key: place for key, place in self._number.items() if isinstance(key, int)
        }

    def file(self, image: dict[str, Any]) -> Path | None:
        """The mask file of a picture's entry; None when there is none."""
        if self.kind == "semantic":
            return file_inside(self.folder, f"{Path(str(image['file_name'])).stem}.png")
        entry = self.content.instances.get(image["id"])
        return file_inside(self.folder, str(entry[0]["file_name"])) if entry else None

    def read(self, image: dict[str, Any], path: Path, size: tuple[int, int], picture: Path) -> tuple[Tensor, list[str]]:
        """The mask, int64 [H,W] of `size` (width, height), and what was not understood of it.

        Raises:
            UnreadablePicture: damaged, of another kind or size, or (semantic) with a value that is no category.
        """
        if self.kind == "semantic":
            return translate(open_index_mask(path, size, picture), self._values, path, "0, 255 or a category id"), []
        codes = open_colour_codes(path)
        check_size(path, "mask", (codes.shape[1], codes.shape[0]), size, picture)
        numbers: dict[Any, int] = {}
        notes: list[str] = []
        for segment in self.content.instances[image["id"]][0]["segments_info"]:
            number = self._number.get(segment["category_id"])
            if number is None:
                notes.append(f"segment {segment['id']}: unknown category {str(segment['category_id'])[:40]}")
            numbers[segment["id"]] = IGNORE if number is None else number
        numbers[0] = IGNORE  # whatever the JSON says of it
        found = torch.unique(codes)
        notes += [f"segment {code} is not in the JSON" for code in found.tolist() if code not in numbers]
        table = torch.tensor([numbers.get(code, IGNORE) for code in found.tolist()], dtype=torch.int64)
        return table[torch.searchsorted(found, codes)], notes
