"""`imagenet`: ILSVRC in class folders or flat, boxes from XML where they are found."""

from collections.abc import Sequence
from pathlib import Path

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.open_picture import open_rgb
from diffusionlens.data.readers.layout import class_folders, first_existing, pictures_below, refuse_empty, root_of
from diffusionlens.data.readers.voc_xml import match_xml, read_voc_xml
from diffusionlens.data.sample import Picture, UnreadablePicture
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query, given_path

_QUERY = {"split": "train or val, default val", "boxes": "folder of the XML annotations"} | COUNT_OPTION

# Sides rounded to whole pixels change the shape of a scaled picture a little; more is another picture.
_SHAPE_TOLERANCE = 0.02


class ImageNet:
    """ImageNet pictures. The label comes from the class folder, or from the first object's name in a flat folder.

    A picture whose XML is missing is skipped and named when the data set has annotations at all.
    """

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        root = root_of(spec)
        split = spec.query.get("split", "val")
        folder = first_existing(
            root, [f"Data/CLS-LOC/{split}", f"ILSVRC/Data/CLS-LOC/{split}", split], f"split '{split}'"
        )
        self.label = spec.label or f"imagenet-{split}"
        self.spec = spec.text
        self.skipped: list[tuple[str, str]] = []
        self.boxes = self._boxes_folder(spec, root, folder, split)
        folders = class_folders(folder)
        pictures = pictures_below(folder)
        refuse_empty(pictures, folder, "pictures")
        self.folder = folder
        self.pictures = pictures
        self.classes: Sequence[str] = folders
        self.mask_classes: Sequence[str] = ()
        if self.boxes is not None:
            self._annotations, unclear = match_xml(pictures, folder, self.boxes)
            self.pictures = [path for path in pictures if path in self._annotations]
            several = set(unclear)
            for path in pictures:
                if path not in self._annotations:
                    why = f"several pictures or XML files are named {path.stem}" if path in several else None
                    self.skipped.append((path.relative_to(folder).as_posix(), why or "no XML annotation"))
            if not self.pictures:
                raise InputError(f"{self.boxes} holds no XML of a picture in {folder}; give the right ?boxes=FOLDER")
            if not folders:
                self.classes = self._classes_of_annotations()
        labelled = {"labels"} if self.classes else set()
        self.provides: frozenset[str] = frozenset(labelled | ({"boxes"} if self.boxes is not None else set()))
        self._number = {name: place for place, name in enumerate(self.classes)}

    @staticmethod
    def _boxes_folder(spec: Spec, root: Path, folder: Path, split: str) -> Path | None:
        if "boxes" in spec.query:
            given = given_path(f"?boxes in '{spec.text}'", spec.query["boxes"], "a folder of XML files")
            if not given.is_dir():
                raise InputError(f"?boxes={given} is not a folder; wanted the XML annotations of {folder}")
            return given
        usual = [f"Annotations/CLS-LOC/{split}", f"ILSVRC/Annotations/CLS-LOC/{split}", f"Annotations/{split}"]
        usual += [f"{split}_boxes", f"{split}_xml"]
        candidates = [root / name for name in usual]
        above = folder.resolve().parents
        if [parent.name for parent in above[:2]] == ["CLS-LOC", "Data"]:  # the root may be given as .../Data/CLS-LOC
            candidates.append(above[2] / "Annotations" / "CLS-LOC" / split)
        return next((candidate for candidate in candidates if candidate.is_dir()), None)

    def _classes_of_annotations(self) -> list[str]:
        names = set()
        for picture in self.pictures:
            try:
                names |= {entry.name for entry in read_voc_xml(self._annotations[picture])[1][:1] if entry.name}
            except UnreadablePicture:
                continue  # said again, by name, when the picture is opened
        return sorted(names)

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, index: int) -> str:
        return self.pictures[index].relative_to(self.folder).as_posix()

    def open(self, index: int) -> Picture:
        path = self.pictures[index]
        size, objects = (None, []) if self.boxes is None else read_voc_xml(self._annotations[path])
        image = open_rgb(path, size, boxes=bool(objects))
        boxes = BoxList(*image.size)
        # ImageNet's stated size is wrong for some files; its boxes are in the pixels of the stated size.
        scale = (1.0, 1.0) if size is None else (image.width / size[0], image.height / size[1])
        if size is not None and abs(scale[0] / scale[1] - 1) > _SHAPE_TOLERANCE:
            found = f"{image.width}x{image.height}"
            reason = f"the picture is {found}, its annotation says {size[0]}x{size[1]}: another shape"
            raise UnreadablePicture(str(path), reason)
        for entry in objects:
            entry.add_to(boxes, self._number.get(entry.name, -1), scale)
        relative = path.relative_to(self.folder)
        label = self._number.get(relative.parts[0] if len(relative.parts) > 1 else objects[0].name if objects else "")
        return Picture(image, self.name(index), label, **boxes.fields())  # type: ignore[arg-type]
