"""`folder`: anybody's pictures, in class folders or flat, with VOC-style XML boxes where there are any."""

from collections.abc import Sequence

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.open_picture import open_annotated
from diffusionlens.data.readers.layout import class_folders, pictures_below, refuse_empty, root_of
from diffusionlens.data.readers.voc_xml import match_xml, read_voc_xml
from diffusionlens.data.sample import Picture
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query, given_path

_QUERY = {
    "boxes": "folder of VOC-style XML files with the pictures' names; default: beside each picture"
} | COUNT_OPTION
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


class Folder:
    """Every picture below a folder. Labels are the names of the first folders, where all pictures lie in such and these
    are not merely splits (train, val, test).

    Boxes come from NAME.xml beside NAME.jpg, or from ?boxes=FOLDER (same path below it, or same name where only one
    picture has it); a picture without one has no boxes. `category` is -1 where a box's name is not one of the classes.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        self.folder = root_of(spec)
        self.label = spec.label or self.folder.resolve().name or "folder"
        self.spec = spec.text
        pictures = pictures_below(self.folder)
        refuse_empty(pictures, self.folder, "pictures")
        given = spec.query.get("boxes")
        boxes = self.folder if given is None else given_path(f"?boxes in '{spec.text}'", given, "a folder of XML files")
        if not boxes.is_dir():
            raise InputError(f"?boxes={given} is not a folder; wanted the XML annotations of {self.folder}")
        self._annotations, unclear = match_xml(pictures, self.folder, boxes)
        if given is not None and not self._annotations:
            raise InputError(f"?boxes={given} holds no XML with the name of a picture in {self.folder}")
        self.skipped: list[tuple[str, str]] = [
            (path.relative_to(self.folder).as_posix(), f"several pictures or XML files are named {path.stem}")
            for path in unclear
        ]
        left_out = set(unclear)
        self.pictures = [path for path in pictures if path not in left_out]
        self.classes: Sequence[str] = []
        self.mask_classes: Sequence[str] = ()
        if all(len(path.relative_to(self.folder).parts) > 1 for path in pictures):
            folders = class_folders(self.folder)
            self.classes = [] if {name.lower() for name in folders} <= _SPLITS else folders
        self._number = {name: place for place, name in enumerate(self.classes)}
        self.provides: frozenset[str] = frozenset(
            ({"boxes"} if self._annotations else set()) | ({"labels"} if self.classes else set())
        )

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return self.pictures[index].relative_to(self.folder).as_posix()

    def open(self, index: int) -> Picture:
        path = self.pictures[index]
        annotation = self._annotations.get(path)
        size, objects = read_voc_xml(annotation) if annotation is not None else (None, [])
        image = open_annotated(path, size, boxes=bool(objects))
        boxes = BoxList(*image.size)
        for entry in objects:
            entry.add_to(boxes, self._number.get(entry.name, -1))
        label = self._number[path.relative_to(self.folder).parts[0]] if self.classes else None
        return Picture(image, self.name(index), label, **boxes.fields())  # type: ignore[arg-type]
