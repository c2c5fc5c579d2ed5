"""`voc`: PASCAL VOC, boxes from XML, class masks from palette PNGs."""

from collections.abc import Sequence
from pathlib import Path

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.layout import first_existing, inside, root_of
from diffusionlens.data.open_picture import open_index_mask, open_rgb
from diffusionlens.data.sample import Picture, UnreadablePicture
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
    """VOC pictures of one split. Masks: 0 background, 1..20 the classes, 255 void."""

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        given = root_of(spec)
        year, split = spec.query.get("year", "2012"), spec.query.get("split", "val")
        folder = first_existing(
            given, [f"VOC{year}/JPEGImages", f"VOCdevkit/VOC{year}/JPEGImages", "JPEGImages"], f"VOC {year} pictures"
        ).parent
        task = spec.query.get("task")
        if task not in (None, "segmentation", "main"):
            raise InputError(f"?task={task} in '{spec.text}'; wanted segmentation or main")
        lists = {"segmentation": ["Segmentation"], "main": ["Main"], None: ["Segmentation", "Main"]}[task]
        split_file = first_existing(
            folder, [f"ImageSets/{name}/{split}.txt" for name in lists], f"list of split '{split}'"
        )
        self.folder = folder
        self.label = spec.label or f"voc-{split}"
        self.spec = spec.text
        self.classes: Sequence[str] = CLASSES
        self.skipped: list[tuple[str, str]] = []
        self.names: list[str] = []
        for line in split_file.read_text(errors="replace").splitlines():
            name = line.split()[0] if line.split() else ""
            if not name:
                continue
            picture = inside(folder / "JPEGImages", f"{name}.jpg")
            if picture is None or not picture.is_file():
                self.skipped.append((f"JPEGImages/{name}.jpg", "listed, but the file does not exist"))
            else:
                self.names.append(name)
        if not self.names:
            raise InputError(f"{split_file} lists no picture that exists in {folder / 'JPEGImages'}")
        masks = (folder / "SegmentationClass").is_dir() and split_file.parent.name == "Segmentation"
        self.provides: frozenset[str] = frozenset({"boxes", "labels"} | ({"masks"} if masks else set()))

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def open(self, index: int) -> Picture:
        name = self.names[index]
        size, objects = read_voc_xml(self._file("Annotations", name, "xml"))
        image = open_rgb(self._file("JPEGImages", name, "jpg"), size)
        if size is not None and size != image.size:
            found = f"{image.width}x{image.height}"
            raise UnreadablePicture(f"{name}.jpg", f"the picture is {found}, its annotation says {size[0]}x{size[1]}")
        boxes = BoxList(*image.size)
        for entry in objects:
            if entry.name not in CLASSES:
                boxes.notes.append(f"object of unknown class '{entry.name[:40]}'")
                continue
            boxes.add(entry.box, CLASSES.index(entry.name), difficult=entry.difficult, what=entry.name)
        mask = None
        if "masks" in self.provides:
            mask = open_index_mask(self._file("SegmentationClass", name, "png"), image.size)
        return Picture(image, name, boxes.only_category, mask=mask, **boxes.fields())  # type: ignore[arg-type]

    def _file(self, kind: str, name: str, suffix: str) -> Path:
        return self.folder / kind / f"{name}.{suffix}"
