"""Opening pictures and index masks of every kind that data sets hold."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from diffusionlens.data.sample import UnreadablePicture

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"}

_ROTATING = {5, 6, 7, 8}  # EXIF orientations that exchange width and height
_ORIENTATION = 0x0112


def open_rgb(path: Path, annotated_size: tuple[int, int] | None = None) -> Image.Image:
    """The picture as RGB: grey, palette, CMYK and 16-bit brought to it, transparency laid on white.

    The EXIF orientation is applied, except where the annotation gives the size (width, height) of the picture as it is
    stored: then its boxes are of the stored picture, and that is used.

    Raises:
        UnreadablePicture: not there, not a picture, cut short, or absurdly large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as file:
                orientation = file.getexif().get(_ORIENTATION, 1)
                stored_size = file.size
                file.load()
                picture: Image.Image = file.copy()
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the file does not exist") from None
    except Image.DecompressionBombError:
        raise UnreadablePicture(str(path), "the picture is too large to open safely") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        reason = "not a picture" if isinstance(error, UnidentifiedImageError) else f"cut short or damaged ({error})"
        raise UnreadablePicture(str(path), " ".join(reason.split())) from None
    if orientation != 1 and annotated_size != stored_size:
        picture = ImageOps.exif_transpose(picture)
    elif orientation != 1 and orientation not in _ROTATING:
        picture = ImageOps.exif_transpose(picture)  # mirrored or upside down: the size can't tell, the standard does
    return _to_rgb(picture)


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGB":
        return picture
    if picture.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        values = np.asarray(picture).astype(np.float64)
        top = 65535.0 if picture.mode.startswith("I") else max(1.0, float(values.max(initial=0)))
        return Image.fromarray(np.clip(values / top * 255 + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
    if "A" in picture.mode or "transparency" in picture.info:
        with_alpha = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, with_alpha).convert("RGB")
    return picture.convert("RGB")


def open_index_mask(path: Path, size: tuple[int, int]) -> Tensor:
    """A mask's stored values, int64 [H,W]: palette indexes stay indexes.

    Args:
        size: (width, height) of the picture that it belongs to.

    Raises:
        UnreadablePicture: not there, damaged, an RGB picture, or of another size.
    """
    try:
        with Image.open(path) as file:
            mode, values = file.mode, np.array(file)
    except FileNotFoundError:
        raise UnreadablePicture(str(path), "the mask does not exist") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise UnreadablePicture(str(path), f"the mask is damaged ({' '.join(str(error).split())})") from None
    if values.ndim != 2:
        raise UnreadablePicture(str(path), f"the mask has the mode {mode}, wanted one index a pixel (P or L)")
    if (values.shape[1], values.shape[0]) != size:
        got = f"{values.shape[1]}x{values.shape[0]}"
        raise UnreadablePicture(str(path), f"the mask is {got}, its picture {size[0]}x{size[1]} (width x height)")
    return torch.from_numpy(values.astype(np.int64))
