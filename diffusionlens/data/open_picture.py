"""Opening pictures and their annotations (masks, colour codes, plain numbers) of every kind that data sets hold."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from torch import Tensor

from diffusionlens.conditions import reason_of, refuse_shortage, regular
from diffusionlens.data.sample import UnreadablePicture

# Pictures are opened as streams: of a path, Pillow 12 maps uncompressed grey TIFFs that EXIF turns by the wrong size.
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"}

_ORIENTATION = 0x0112
# What turns an upright picture back into the stored one, by its EXIF orientation; from 5 on width and height are exchanged.
_LAY_DOWN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_FIRST_SIDEWAYS = 5


def open_rgb(path: Path, annotated_size: tuple[int, int] | None = None, *, boxes: bool = False) -> Image.Image:
    """The picture as RGB: grey, palette, CMYK and 16-bit brought to it, transparency laid on white.

    Without an annotation in pixels, the EXIF orientation is applied. Masks, depth maps and boxes are of the pixels as they are
    stored: torchvision's readers, and who opens COCO's pictures with Pillow beside pycocotools, apply no orientation. So such a
    picture is taken as stored, unless its annotation has the size of the upright one alone. Of several frames the first is taken.

    Args:
        annotated_size: (width, height) of its mask, its depth map, or as its annotation states it.
        boxes: it has boxes; where no size is stated they are of the stored picture, too.

    Raises:
        UnreadablePicture: not there, not to be read, not a picture, cut short, absurdly large, or of a kind whose white is
            unknown.
        InputError: the machine has run out of open files or memory.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on odd but readable files
        try:
            with regular(path).open("rb") as stream, Image.open(stream) as file:
                orientation = _orientation(file)
                file.load()
                picture = _upright(file.copy())
            if _meant_as_stored(orientation, picture.size, annotated_size, boxes=boxes):
                picture = picture.transpose(_LAY_DOWN[orientation])
            picture = _to_rgb(picture, path)
        except UnreadablePicture:
            raise
        except FileNotFoundError:
            raise UnreadablePicture(str(path), "the file does not exist") from None
        except Image.DecompressionBombError:
            raise UnreadablePicture(str(path), "the picture is too large to open safely") from None
        except UnidentifiedImageError:
            raise UnreadablePicture(str(path), "not a picture") from None
        except Exception as error:  # a damaged file makes Pillow's decoders raise errors of every kind
            refuse_shortage(error, f"{path} can't be opened")
            reason = reason_of(error) or f"cut short or damaged ({_one_line(error)})"
            raise UnreadablePicture(str(path), reason) from None
    if 0 in picture.size:
        raise UnreadablePicture(str(path), "the picture has no pixels")
    return picture


def open_annotated(path: Path, size: tuple[int, int] | None, *, boxes: bool = False) -> Image.Image:
    """As `open_rgb`, and certain to be of the (width, height) that the annotation states; None states none.

    Raises:
        UnreadablePicture: as `open_rgb`, or the sizes differ: the annotation is of another picture.
    """
    picture = open_rgb(path, size, boxes=boxes)
    if size is not None and size != picture.size:
        found = f"{picture.width}x{picture.height}"
        raise UnreadablePicture(str(path), f"the picture is {found}, its annotation says {size[0]}x{size[1]}")
    return picture


def _meant_as_stored(
    orientation: int, upright: tuple[int, int], annotated: tuple[int, int] | None, *, boxes: bool
) -> bool:
    if orientation not in _LAY_DOWN:
        return False
    if annotated is None:
        return boxes
    return orientation < _FIRST_SIDEWAYS or annotated == upright[::-1]


def _orientation(file: Image.Image) -> int:
    try:
        return int(file.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data is no reason to refuse the pixels
        return 1


def _upright(picture: Image.Image) -> Image.Image:
    """The EXIF orientation applied; Pillow has done so already for TIFF, and then this changes nothing."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # as in `_orientation`
        return picture


def _to_rgb(picture: Image.Image, path: Path) -> Image.Image:
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
    if picture.mode == "I" or picture.mode.startswith("I;"):
        values = np.asarray(picture).astype(np.int64)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise UnreadablePicture(str(path), "its integer values leave 0..65535, so what is white is unknown")
        return Image.fromarray(np.rint(values / 257).astype(np.uint8)).convert("RGB")
    if picture.mode in ("F", "LAB"):
        raise UnreadablePicture(str(path), f"of the mode {picture.mode}; wanted grey, RGB, CMYK or palette")
    return picture.convert("RGB")


def open_index_mask(path: Path, size: tuple[int, int] | None = None, picture: Path | None = None) -> Tensor:
    """A mask's stored values, int64 [H,W]: palette indexes stay indexes, grey of 2 or 4 bits is not stretched to 8.

    Args:
        size: (width, height) of the picture that it belongs to; None checks nothing.
        picture: that picture's file, for the message.

    Raises:
        UnreadablePicture: not there, damaged, an RGB or floating-point picture, or of another size.
    """
    stored = open_stored(path, "mask")
    values = stored.values
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise UnreadablePicture(str(path), f"the mask has the mode {stored.mode}, wanted one index a pixel (P or L)")
    check_size(path, "mask", (values.shape[1], values.shape[0]), size, picture)
    return torch.from_numpy(values.astype(np.int64))


def open_colour_codes(path: Path) -> Tensor:
    """One number for every pixel's colour, R + 256 G + 256^2 B, int64 [H,W]: COCO's panoptic segments, colour labels.

    Raises:
        UnreadablePicture: not there, damaged, or not RGB (a palette picture would hold other numbers).
    """
    stored = open_stored(path, "mask")
    if stored.mode != "RGB":
        raise UnreadablePicture(str(path), f"the mask has the mode {stored.mode}, wanted colours (RGB)")
    red, green, blue = torch.from_numpy(stored.values.astype(np.int64)).unbind(-1)
    return red + 256 * green + 65536 * blue


@dataclass(frozen=True)
class Stored:
    """The pixels of an annotation as they are in the file, and Pillow's name of their kind."""

    mode: str
    values: NDArray[Any]


def open_stored(path: Path, what: str) -> Stored:
    """Reads an annotation (`what`: mask, depth map) without converting anything.

    Raises:
        UnreadablePicture: not there, not to be read, damaged or absurdly large.
        InputError: the machine has run out of open files or memory.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with regular(path).open("rb") as stream, Image.open(stream) as file:
                # Pillow stretches grey of few bits over 0..255, which would turn class 3 into class 51.
                stretched = {"L;2": 85, "L;4": 17}.get(_raw_mode(file), 1)
                turned = _orientation(file) if file.format == "TIFF" else 1  # the one kind that Pillow turns by itself
                mode, values = file.mode, np.array(file)
                if turned in _LAY_DOWN:
                    values = np.array(Image.fromarray(values).transpose(_LAY_DOWN[turned]))
    except FileNotFoundError:
        raise UnreadablePicture(str(path), f"the {what} does not exist") from None
    except Image.DecompressionBombError:
        raise UnreadablePicture(str(path), f"the {what} is too large to open safely") from None
    except Exception as error:  # as in `open_rgb`
        refuse_shortage(error, f"{path} can't be opened")
        reason = reason_of(error) or f"is damaged ({_one_line(error)})"
        raise UnreadablePicture(str(path), f"the {what} {reason}") from None
    return Stored(mode, values if stretched == 1 else values // stretched)


def check_size(
    path: Path, what: str, found: tuple[int, int], wanted: tuple[int, int] | None, picture: Path | None = None
) -> None:
    """Refuses an annotation that is not of its picture's (width, height); None wants nothing.

    Raises:
        UnreadablePicture: names both files and both sizes.
    """
    if wanted is not None and found != wanted:
        of = f"; {picture}" if picture is not None else ""
        sizes = f"the {what} is {found[0]}x{found[1]}, its picture {wanted[0]}x{wanted[1]}"
        raise UnreadablePicture(str(path), f"{sizes} (width x height{of})")


def _raw_mode(file: Image.Image) -> str:
    """How the pixels lie in the file, where the format's reader says so."""
    arguments = file.tile[0][3] if isinstance(file, ImageFile) and file.tile else None
    return arguments if isinstance(arguments, str) else ""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
