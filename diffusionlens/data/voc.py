"""`voc`: PASCAL VOC, boxes from XML, class masks from palette PNGs."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.layout import first_existing, inside, root_of
from diffusionlens.data.open_picture import open_annotated, open_index_mask
from diffusionlens.data.sample import IGNORE, Picture, UnreadablePicture
from diffusionlens.data.voc_xml import read_voc_xml
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
    "split": "name of a list, default val",
    "task": "segmentation or main: which lists; default segmentation where it has the split",
}


class Voc:
    """VOC pictures of one split. Masks: 0 background, 1..20 the classes, 255 void.

    Without a folder Annotations it provides masks only, without SegmentationClass boxes only. In lists of one class
    (`?split=cat_val`) the pictures marked -1 are left out.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        given = root_of(spec)
        year, split = spec.query.get("year", "2012"), spec.query.get("split", "val")
        folder = first_existing(
            given, [f"VOC{year}/JPEGImages", f"VOCdevkit/VOC{year}/JPEGImages", "JPEGImages"], f"VOC {year} pictures"
        ).parent
        split_file = _list_of(folder, split, spec)
        self.folder = folder
        self.label = spec.label or f"voc-{split}"
        self.spec = spec.text
        self.classes: Sequence[str] = CLASSES
        self.skipped: list[tuple[str, str]] = []
        self.names: list[str] = []
        for line in split_file.read_text(encoding="utf-8", errors="replace").splitlines():
            name, *mark = line.split() or [""]
            if not name or mark == ["-1"]:
                continue
            picture = inside(folder / "JPEGImages", f"{name}.jpg")
            if picture is None or not picture.is_file():
                self.skipped.append((f"JPEGImages/{name}.jpg", "listed, but the file does not exist"))
            else:
                self.names.append(name)
        if not self.names:
            raise InputError(f"{split_file} lists no picture that exists in {folder / 'JPEGImages'}")
        masks = (folder / "SegmentationClass").is_dir() and split_file.parent.name == "Segmentation"
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
        image = open_annotated(self._file("JPEGImages", name, "jpg"), size)
        boxes = BoxList(*image.size)
        for entry in objects:
            if entry.name not in CLASSES:
                boxes.notes.append(f"object of unknown class '{entry.name[:40]}'")
                continue
            boxes.add(entry.box, CLASSES.index(entry.name), difficult=entry.difficult, what=entry.name)
        mask = self._mask(name, image.size) if "masks" in self.provides else None
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]

    def _mask(self, name: str, size: tuple[int, int]) -> Tensor:
        path = self._file("SegmentationClass", name, "png")
        mask = open_index_mask(path, size)
        foreign = mask[(mask > len(CLASSES)) & (mask != IGNORE)]
        if len(foreign):
            raise UnreadablePicture(str(path), f"the mask holds the value {int(foreign[0])}, wanted 0..20 or 255")
        return mask

    def _file(self, kind: str, name: str, suffix: str) -> Path:
        return self.folder / kind / f"{name}.{suffix}"


def _list_of(folder: Path, split: str, spec: Spec) -> Path:
    task = spec.query.get("task")
    if task not in (None, "segmentation", "main"):
        raise InputError(f"?task={task} in '{spec.text}'; wanted segmentation or main")
    kinds = {"segmentation": ["Segmentation"], "main": ["Main"], None: ["Segmentation", "Main"]}[task]
    present = sorted({path.stem for kind in kinds for path in (folder / "ImageSets" / kind).glob("*.txt")})
    # Main holds 20 lists of one class for each split; they would hide the names that are wanted here.
    usual = [name for name in present if not name.startswith(tuple(f"{one}_" for one in CLASSES))]
    hint = f"; splits there: {', '.join(usual)}" if usual else ""
    return first_existing(folder, [f"ImageSets/{kind}/{split}.txt" for kind in kinds], f"list of split '{split}'", hint)
