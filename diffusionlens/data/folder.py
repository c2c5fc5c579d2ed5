"""`folder`: anybody's pictures, in class folders or flat, with VOC-style XML boxes where there are any."""

from collections.abc import Sequence
from pathlib import Path

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.layout import class_folders, pictures_below, refuse_empty, root_of
from diffusionlens.data.open_picture import open_rgb
from diffusionlens.data.sample import Picture
from diffusionlens.data.voc_xml import read_voc_xml
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {"boxes": "folder of VOC-style XML files with the pictures' names; default: beside each picture"}


class Folder:
    """Every picture below a folder. Labels are the names of the first folders, where all pictures lie in such.

    Boxes come from NAME.xml beside NAME.jpg, or from ?boxes=FOLDER; a picture without one has no boxes.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        self.folder = root_of(spec)
        self.label = spec.label or self.folder.resolve().name
        self.spec = spec.text
        self.skipped: list[tuple[str, str]] = []
        self.pictures = pictures_below(self.folder)
        refuse_empty(self.pictures, self.folder, "pictures")
        given = spec.query.get("boxes")
        if given is not None and not Path(given).expanduser().is_dir():
            raise InputError(f"?boxes={given} is not a folder; wanted the XML annotations of {self.folder}")
        self.boxes = None if given is None else Path(given).expanduser()
        all_in_folders = all(len(path.relative_to(self.folder).parts) > 1 for path in self.pictures)
        self.classes: Sequence[str] = class_folders(self.folder) if all_in_folders else []
        with_boxes = any(self._annotation(path).is_file() for path in self.pictures)
        if given is not None and not with_boxes:
            raise InputError(f"?boxes={given} holds no XML with the name of a picture in {self.folder}")
        self.provides: frozenset[str] = frozenset(
            ({"boxes"} if with_boxes else set()) | ({"labels"} if self.classes else set())
        )

    def _annotation(self, picture: Path) -> Path:
        return picture.with_suffix(".xml") if self.boxes is None else self.boxes / f"{picture.stem}.xml"

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return self.pictures[index].relative_to(self.folder).as_posix()

    def open(self, index: int) -> Picture:
        path = self.pictures[index]
        annotation = self._annotation(path)
        size, objects = read_voc_xml(annotation) if annotation.is_file() else (None, [])
        image = open_rgb(path, size)
        boxes = BoxList(*image.size)
        for entry in objects:
            category = self.classes.index(entry.name) if entry.name in self.classes else -1
            boxes.add(entry.box, category, difficult=entry.difficult, what=entry.name or "object")
        label = self.classes.index(path.relative_to(self.folder).parts[0]) if self.classes else None
        return Picture(image, self.name(index), label, **boxes.fields())  # type: ignore[arg-type]
