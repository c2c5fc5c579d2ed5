"""Files for the readers' tests, written without the code that reads them."""

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image


def save_picture(path: Path, size: tuple[int, int] = (4, 2)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 30)).save(path)
    return path


def save_mask(path: Path, values: ArrayLike) -> Path:
    """An 8-bit index mask, or a coloured one when `values` has three channels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)
    return path


def save_palette(path: Path, values: ArrayLike) -> Path:
    """A palette mask whose colours say nothing of its indexes."""
    array = np.asarray(values, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(array).convert("P")
    picture.putdata(array.ravel().tolist())
    picture.putpalette([200, 100, 50] * 256)
    picture.save(path)
    return path


def save_grey(path: Path, rows: list[list[int]], bits: int, claimed: tuple[int, int] | None = None) -> Path:
    """A grey PNG of 1, 2, 4, 8 or 16 bits, byte by byte; `claimed` is a (width, height) that its header lies."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    lines = b""
    for row in rows:
        whole = "".join(f"{value:0{bits}b}" for value in row)
        whole += "0" * (-len(whole) % 8)
        lines += b"\0" + int(whole, 2).to_bytes(len(whole) // 8, "big")
    width, height = claimed or (len(rows[0]), len(rows))
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )
    return path
