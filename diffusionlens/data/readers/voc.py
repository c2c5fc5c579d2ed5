"""`voc`: PASCAL VOC, boxes from XML, class masks from palette PNGs."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.open_picture import check_size, open_annotated, open_index_mask
from diffusionlens.data.readers.layout import first_existing, inside, root_of
from diffusionlens.data.readers.mask_values import in_order, translate
from diffusionlens.data.readers.splits import read_list, splits_there
from diffusionlens.data.readers.voc_xml import read_voc_xml
from diffusionlens.data.sample import Picture
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)

_QUERY = {
    "year": "2007..2012, default 2012",
    "split": "name of a list, default val; trainaug with the masks of SBD",
    "task": "segmentation or main: which lists; default segmentation where it has the split",
} | COUNT_OPTION

_MASK_VALUES = in_order(len(CLASSES) + 1)


class Voc:
    """VOC pictures of one split. Masks: 0 background, 1..20 the classes, 255 void: 21 classes with the background.

    Without a folder Annotations it provides masks only, without SegmentationClass boxes only. In lists of one class
    (`?split=cat_val`) the pictures marked -1 are left out.

    `?split=trainaug` is VOC's train and what SBD annotated of the rest (10,582 pictures): masks are VOC's own where there
    are some, otherwise those of SBD, in SegmentationClassAug. The list is trainaug.txt or train_aug.txt, or train.txt and
    aug.txt together.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        given = root_of(spec)
        year, split = spec.query.get("year", "2012"), spec.query.get("split", "val")
        folder = first_existing(
            given, [f"VOC{year}/JPEGImages", f"VOCdevkit/VOC{year}/JPEGImages", "JPEGImages"], f"VOC {year} pictures"
        ).parent
        lists = _augmented_lists(folder) if split == "trainaug" else [_list_of(folder, split, spec)]
        self.folder = folder
        self.label = spec.label or f"voc-{split}"
        self.spec = spec.text
        self.classes: Sequence[str] = CLASSES
        self.skipped: list[tuple[str, str]] = []
        self.names: list[str] = []
        for name in _names(lists):
            picture = inside(folder / "JPEGImages", f"{name}.jpg")
            if picture is None or not picture.is_file():
                self.skipped.append((f"JPEGImages/{name}.jpg", "listed, but the file does not exist"))
            else:
                self.names.append(name)
        if not self.names:
            raise InputError(f"{lists[0]} lists no picture that exists in {folder / 'JPEGImages'}")
        self._mask_folders = ["SegmentationClass", *(["SegmentationClassAug"] if split == "trainaug" else [])]
        masks = lists[0].parent.name == "Segmentation" and any((folder / name).is_dir() for name in self._mask_folders)
        self.mask_classes: Sequence[str] = ("background", *CLASSES) if masks else ()
        self._annotated = (folder / "Annotations").is_dir()
        self.provides: frozenset[str] = frozenset(
            ({"boxes", "labels"} if self._annotated else set()) | ({"masks"} if masks else set())
        )

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def open(self, index: int) -> Picture:
        name = self.names[index]
        size, objects = read_voc_xml(self._file("Annotations", name, "xml")) if self._annotated else (None, [])
        mask = self._mask(name) if "masks" in self.provides else None
        if size is None and mask is not None:
            size = (mask.shape[1], mask.shape[0])
        path = self._file("JPEGImages", name, "jpg")
        image = open_annotated(path, size, boxes=bool(objects))
        if mask is not None:
            check_size(self._mask_file(name), "mask", (mask.shape[1], mask.shape[0]), image.size, path)
        boxes = BoxList(*image.size)
        for entry in objects:
            if entry.name not in CLASSES:
                boxes.notes.append(f"object of unknown class '{entry.name[:40]}'")
                continue
            entry.add_to(boxes, CLASSES.index(entry.name))
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]

    def _mask(self, name: str) -> Tensor:
        path = self._mask_file(name)
        return translate(open_index_mask(path), _MASK_VALUES, path, "0..20 or 255")

    def _mask_file(self, name: str) -> Path:
        paths = [self._file(folder, name, "png") for folder in self._mask_folders]
        return next((path for path in paths if path.is_file()), paths[-1])

    def _file(self, kind: str, name: str, suffix: str) -> Path:
        return self.folder / kind / f"{name}.{suffix}"


def _names(lists: Sequence[Path]) -> list[str]:
    """The names in the lists, each once, without those that a list of one class marks with -1."""
    lines = [line for path in lists for line in read_list(path)]
    return list(dict.fromkeys(line[0] for line in lines if line[1:] != ["-1"]))


def _augmented_lists(folder: Path) -> list[Path]:
    """The lists that make up trainaug.

    Raises:
        InputError: the masks of SBD or the lists are not there.
    """
    if not (folder / "SegmentationClassAug").is_dir():
        raise InputError(
            f"{folder} has no SegmentationClassAug, so there is no split 'trainaug': put the masks of SBD there as index "
            f"PNGs, or use ?split=train"
        )
    lists = folder / "ImageSets" / "Segmentation"
    for names in (["trainaug"], ["train_aug"], ["train", "aug"]):
        paths = [lists / f"{name}.txt" for name in names]
        if all(path.is_file() for path in paths):
            return paths
    raise InputError(
        f"{lists} has no list of trainaug: looked for trainaug.txt, train_aug.txt, and train.txt with aug.txt"
    )


def _list_of(folder: Path, split: str, spec: Spec) -> Path:
    task = spec.query.get("task")
    if task not in (None, "segmentation", "main"):
        raise InputError(f"?task={task} in '{spec.text}'; wanted segmentation or main")
    kinds = {"segmentation": ["Segmentation"], "main": ["Main"], None: ["Segmentation", "Main"]}[task]
    present = sorted({path.stem for kind in kinds for path in (folder / "ImageSets" / kind).glob("*.txt")})
    # Main holds 20 lists of one class for each split; they would hide the names that are wanted here.
    usual = [name for name in present if not name.startswith(tuple(f"{one}_" for one in CLASSES))]
    hint = splits_there(usual, split)
    return first_existing(folder, [f"ImageSets/{kind}/{split}.txt" for kind in kinds], f"list of split '{split}'", hint)
