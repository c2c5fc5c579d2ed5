"""VOC-style XML annotations (VOC, ImageNet, most labelling tools): read as from a stranger."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import parse

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
        UnreadablePicture: no such file, not XML, or XML that would grow without bound.
    """
    try:
        root = parse(path).getroot()
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the annotation does not exist") from None
    except (ParseError, DefusedXmlException, ValueError, OSError, LookupError) as error:
        raise UnreadablePicture(str(path), f"the annotation is not valid XML ({type(error).__name__})") from None
    width, height = _number(root, "size/width"), _number(root, "size/height")
    size = (int(width), int(height)) if width > 0 and height > 0 else None
    objects = []
    for element in root.iter("object"):
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
