"""VOC-style XML annotations (VOC, ImageNet, most labelling tools): read as from a stranger, matched by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException, DTDForbidden, EntitiesForbidden, ExternalReferenceForbidden
from defusedxml.ElementTree import parse

from diffusionlens.conditions import reason_of, refuse_shortage, regular
from diffusionlens.data.boxes import BoxList
from diffusionlens.data.readers.layout import files_below
from diffusionlens.data.sample import UnreadablePicture
from diffusionlens.errors import in_short

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class XmlObject:
    """One annotated object: the `number`-th of its file, its class name and box, XYXY with exclusive ends.

    `written` is the box in the file's own words; `fault` says what is wrong with one that is none (NaN in `box`).
    """

    number: int
    name: str
    box: tuple[float, float, float, float]
    written: str
    fault: str | None
    difficult: bool

    @property
    def what(self) -> str:
        """The object for a message."""
        return f"{self.name[:40]} (object {self.number})" if self.name else f"object {self.number}"

    def add_to(self, boxes: BoxList, category: int, scale: tuple[float, float] = (1.0, 1.0)) -> None:
        """Adds the box, times `scale` (x, y), or notes what is wrong with it."""
        if self.fault is not None:
            boxes.notes.append(f"{self.what}: {self.fault}")
            return
        box = [side * factor for side, factor in zip(self.box, (*scale, *scale), strict=True)]
        boxes.add(box, category, self.written, difficult=self.difficult, what=self.what)


def read_voc_xml(path: Path) -> tuple[tuple[int, int] | None, list[XmlObject]]:
    """The annotated (width, height), None when not stated, and the objects.

    VOC's corners are 1-based and inclusive: the first pixel alone is 1,1,1,1, which becomes 0,0,1,1.

    Raises:
        UnreadablePicture: no such file, not to be read, not XML, not an annotation, or XML that would grow without bound.
        InputError: the machine has run out of open files or memory.
    """
    try:
        root = parse(regular(path)).getroot()
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the annotation does not exist") from None
    except (ParseError, DefusedXmlException, ValueError, OSError, LookupError, MemoryError) as error:
        refuse_shortage(error, f"{path} can't be opened")
        reason = reason_of(error) or f"is not valid XML ({_why(error)})"
        raise UnreadablePicture(str(path), f"the annotation {reason}") from None
    if root.tag != "annotation":
        raise UnreadablePicture(str(path), f"the annotation is a <{root.tag[:40]}>, wanted VOC's <annotation>")
    width, height = _number(root, "size/width"), _number(root, "size/height")
    size = (int(width), int(height)) if all(isfinite(side) and side >= 1 for side in (width, height)) else None
    return size, [_object(element, number) for number, element in enumerate(root.findall("object"), start=1)]


def _object(element: Element, number: int) -> XmlObject:
    corners = [_number(element, f"bndbox/{key}") for key in _CORNERS]
    texts = {key: element.findtext(f"bndbox/{key}") for key in _CORNERS}
    faults = [
        f"its <{key}> is missing" if text is None else f"its <{key}> is {text.strip()[:40]!r}, wanted a number"
        for (key, text), corner in zip(texts.items(), corners, strict=True)
        if not isfinite(corner)
    ]
    if element.find("bndbox") is None:
        faults = ["it has no <bndbox>"]
    return XmlObject(
        number,
        (element.findtext("name") or "").strip(),
        (corners[0] - 1, corners[1] - 1, corners[2], corners[3]),
        ", ".join(f"{key} {(text or '').strip()[:40]}" for key, text in texts.items()),
        "; ".join(faults) or None,
        (element.findtext("difficult") or "0").strip() == "1",
    )


def _why(error: Exception) -> str:
    """What is wrong with a file that is no XML, and where."""
    if isinstance(error, DTDForbidden | EntitiesForbidden | ExternalReferenceForbidden):
        return "it declares entities, which an annotation does not need and which can be made to fill the memory"
    return in_short(error, 120)  # of expat: what, line and column


def _number(element: Element, place: str) -> float:
    try:
        return float(element.findtext(place) or "nan")
    except ValueError:
        return float("nan")


def match_xml(pictures: Sequence[Path], root: Path, folder: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Which XML file below `folder` belongs to which picture below `root`, and the pictures for which that is unclear.

    The same path below both is a match; otherwise the same name, when no other picture and no other XML has it.
    """
    files = files_below(folder, ".xml")
    by_path = {file.relative_to(folder).with_suffix(""): file for file in files}
    by_name = {file.stem: file for file in files}
    named, wanted = Counter(file.stem for file in files), Counter(picture.stem for picture in pictures)
    matched: dict[Path, Path] = {}
    unclear: list[Path] = []
    for picture in pictures:
        same_path = by_path.get(picture.relative_to(root).with_suffix(""))
        if same_path is not None:
            matched[picture] = same_path
        elif folder == root or picture.stem not in by_name:  # XML beside the pictures has no other path
            continue
        elif named[picture.stem] == 1 and wanted[picture.stem] == 1:
            matched[picture] = by_name[picture.stem]
        else:
            unclear.append(picture)
    return matched, unclear
