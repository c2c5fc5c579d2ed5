"""`cityscapes`: Cityscapes with fine annotations, the 19 classes of its benchmark."""

from pathlib import Path

from torch import Tensor

from diffusionlens.data.readers.layout import first_existing, root_of
from diffusionlens.data.readers.mask_values import IndexValues, in_order
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.readers.splits import chosen_split, pairs_by_name
from diffusionlens.data.sample import IGNORE
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.spec import Spec, check_query

# Name and stored id in the order of the train ids, from cityscapesscripts/helpers/labels.py.
_IDS = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
CLASSES = tuple(_IDS)

# Ids 0..33 exist; those without a train id are void in the benchmark.
_LABEL_IDS = dict.fromkeys((*range(34), IGNORE), IGNORE) | {
    stored: number for number, stored in enumerate(_IDS.values())
}

_QUERY = {"split": "train, val or test, default val"} | COUNT_OPTION


class _Labels:
    """Either of the two files that hold a picture's classes, told apart by their names."""

    _label_ids = IndexValues(_LABEL_IDS, "a label id, 0..33")
    _train_ids = IndexValues(in_order(len(CLASSES)), "a train id, 0..18 or 255")

    def read(self, path: Path) -> Tensor:
        return (self._train_ids if path.stem.endswith("TrainIds") else self._label_ids).read(path)


def cityscapes(spec: Spec) -> PairedPictures:
    """Cityscapes pictures with masks of the 19 classes; all else is ignored.

    Masks are NAME_gtFine_labelIds.png, or NAME_gtFine_labelTrainIds.png where a split has only these. The published masks
    of the split test are void.

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    pictures = first_existing(root_of(spec), ["leftImg8bit"], "Cityscapes pictures (leftImg8bit, gtFine)")
    root = pictures.parent
    present = [folder.name for folder in pictures.glob("*") if (root / "gtFine" / folder.name).is_dir()]
    split = chosen_split(spec, present, "val", root)
    annotations = root / "gtFine" / split
    kinds = ("labelIds", "labelTrainIds")
    kind = next((kind for kind in kinds if any(annotations.glob(f"*/*_gtFine_{kind}.png"))), kinds[0])
    pairs, skipped = pairs_by_name(pictures / split, annotations, ("_leftImg8bit", f"_gtFine_{kind}"), "mask")
    return PairedPictures(spec, split, pairs, skipped, _Labels(), annotations, CLASSES)
