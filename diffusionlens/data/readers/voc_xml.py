"""VOC-style XML annotations (VOC, ImageNet, most labelling tools): read as from a stranger, matched by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import parse

from diffusionlens.data.readers.layout import files_below
from diffusionlens.data.sample import UnreadablePicture


@dataclass(frozen=True)
class XmlObject:
    """One annotated object: its class name and box, XYXY with exclusive ends; NaN where a number was none."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool


def read_voc_xml(path: Path) -> tuple[tuple[int, int] | None, list[XmlObject]]:
    """The annotated (width, height), None when not stated, and the objects.

    VOC's corners are 1-based and inclusive: the first pixel alone is 1,1,1,1, which becomes 0,0,1,1.

    Raises:
        UnreadablePicture: no such file, not XML, not an annotation, or XML that would grow without bound.
    """
    try:
        root = parse(path).getroot()
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the annotation does not exist") from None
    except (ParseError, DefusedXmlException, ValueError, OSError, LookupError) as error:
        raise UnreadablePicture(str(path), f"the annotation is not valid XML ({type(error).__name__})") from None
    if root.tag != "annotation":
        raise UnreadablePicture(str(path), f"the annotation is a <{root.tag[:40]}>, wanted VOC's <annotation>")
    width, height = _number(root, "size/width"), _number(root, "size/height")
    size = (int(width), int(height)) if all(isfinite(side) and side >= 1 for side in (width, height)) else None
    objects = []
    for element in root.findall("object"):
        corners = [_number(element, f"bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax")]
        box = (corners[0] - 1, corners[1] - 1, corners[2], corners[3])
        name = (element.findtext("name") or "").strip()
        objects.append(XmlObject(name, box, (element.findtext("difficult") or "0").strip() == "1"))
    return size, objects


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
