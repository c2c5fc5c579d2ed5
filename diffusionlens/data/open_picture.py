"""Opening pictures and index masks of every kind that data sets hold."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from diffusionlens.data.sample import UnreadablePicture

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"}

_ORIENTATION = 0x0112
# What turns an upright picture back into the stored one, for the EXIF orientations that exchange width and height.
_LAY_DOWN = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def open_rgb(path: Path, annotated_size: tuple[int, int] | None = None) -> Image.Image:
    """The picture as RGB: grey, palette, CMYK and 16-bit brought to it, transparency laid on white.

    The EXIF orientation is applied, except where the annotation gives the size (width, height) of the picture as it is
    stored and not that of the upright one: then its boxes are of the stored picture, and that is used. Of several
    frames the first is taken.

    Raises:
        UnreadablePicture: not there, not a picture, cut short, absurdly large, or of a kind whose white is unknown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on odd but readable files
        try:
            with Image.open(path) as file:
                orientation = _orientation(file)
                file.load()
                picture = _upright(file.copy())
            if orientation in _LAY_DOWN and annotated_size == picture.size[::-1] != picture.size:
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
            raise UnreadablePicture(str(path), f"cut short or damaged ({_one_line(error)})") from None
    if 0 in picture.size:
        raise UnreadablePicture(str(path), "the picture has no pixels")
    return picture


def open_annotated(path: Path, size: tuple[int, int] | None) -> Image.Image:
    """As `open_rgb`, and certain to be of the (width, height) that the annotation states; None states none.

    Raises:
        UnreadablePicture: as `open_rgb`, or the sizes differ: the annotation is of another picture.
    """
    picture = open_rgb(path, size)
    if size is not None and size != picture.size:
        found = f"{picture.width}x{picture.height}"
        raise UnreadablePicture(str(path), f"the picture is {found}, its annotation says {size[0]}x{size[1]}")
    return picture


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


def open_index_mask(path: Path, size: tuple[int, int] | None = None) -> Tensor:
    """A mask's stored values, int64 [H,W]: palette indexes stay indexes.

    Args:
        size: (width, height) of the picture that it belongs to; None checks nothing.

    Raises:
        UnreadablePicture: not there, damaged, an RGB or floating-point picture, or of another size.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as file:
                mode, values = file.mode, np.array(file)
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the mask does not exist") from None
    except Exception as error:  # as in `open_rgb`
        raise UnreadablePicture(str(path), f"the mask is damaged ({_one_line(error)})") from None
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise UnreadablePicture(str(path), f"the mask has the mode {mode}, wanted one index a pixel (P or L)")
    if size is not None and (values.shape[1], values.shape[0]) != size:
        got = f"{values.shape[1]}x{values.shape[0]}"
        raise UnreadablePicture(str(path), f"the mask is {got}, its picture {size[0]}x{size[1]} (width x height)")
    return torch.from_numpy(values.astype(np.int64))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
