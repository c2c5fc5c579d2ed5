"""Pictures of every kind come out as the RGB that they show; damaged ones are named."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data.open_picture import open_index_mask, open_rgb
from diffusionlens.data.sample import UnreadablePicture

RAMP = np.linspace(0, 255, 60, dtype=np.uint8).reshape(6, 10)


def saved(picture: Image.Image, path: Path, **options: object) -> Path:
    picture.save(path, **options)
    return path


def test_grey_and_palette(tmp_path: Path) -> None:
    grey = saved(Image.fromarray(RAMP), tmp_path / "g.png")
    assert (np.asarray(open_rgb(grey)) == RAMP[..., None]).all()
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 250, 10, 20])
    assert open_rgb(saved(palette, tmp_path / "p.png")).getpixel((2, 1)) == (250, 10, 20)


def test_sixteen_bit_is_scaled_not_cut(tmp_path: Path) -> None:
    deep = Image.fromarray(RAMP.astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    assert (np.asarray(open_rgb(saved(deep, tmp_path / "d.png"))) == RAMP[..., None]).all()


def test_transparency_lies_on_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    clear.putpixel((1, 1), (10, 20, 30, 255))
    opened = open_rgb(saved(clear, tmp_path / "a.png"))
    assert opened.getpixel((0, 0)) == (255, 255, 255)
    assert opened.getpixel((1, 1)) == (10, 20, 30)
    grey_alpha = saved(Image.new("LA", (2, 2), (7, 255)), tmp_path / "la.png")
    assert open_rgb(grey_alpha).getpixel((0, 0)) == (7, 7, 7)


def test_cmyk(tmp_path: Path) -> None:
    opened = open_rgb(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "c.jpg", quality=95))
    red, green, blue = opened.getpixel((4, 4))
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, tmp_path: Path) -> None:
    """A picture 10 wide and 6 high; rotated ones stand upright, except where the annotation is of the stored file."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(Image.fromarray(RAMP).convert("RGB"), tmp_path / "e.png", exif=exif)
    upright = (6, 10) if orientation >= 5 else (10, 6)
    assert open_rgb(path).size == upright
    assert open_rgb(path, upright).size == upright
    if orientation >= 5:
        assert (np.asarray(open_rgb(path, (10, 6)))[..., 0] == RAMP).all()


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "missing", "folder"])
def test_damage_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    if kind == "text":
        path.write_text("not a picture")
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "cut":
        buffer = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)).save(buffer, "JPEG")
        path.write_bytes(buffer.getvalue()[:1500])
    if kind == "folder":
        path.mkdir()
    with pytest.raises(UnreadablePicture) as caught:
        open_rgb(path)
    assert caught.value.file == str(path)
    assert "\n" not in caught.value.reason


def test_a_picture_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(Image.new("L", (100, 100)), tmp_path / "b.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadablePicture, match="too large"):
        open_rgb(path)


def test_masks_keep_their_indexes(tmp_path: Path) -> None:
    values = np.array([[0, 3, 255], [20, 1, 0]], np.uint8)
    picture = Image.fromarray(values).convert("P")
    picture.putdata(values.ravel().tolist())
    picture.putpalette([200, 100, 50] * 256)
    mask = open_index_mask(saved(picture, tmp_path / "m.png"), (3, 2))
    assert mask.dtype == torch.int64
    assert mask.tolist() == values.tolist()
    with pytest.raises(UnreadablePicture, match=r"the mask is 3x2, its picture 2x3"):
        open_index_mask(tmp_path / "m.png", (2, 3))
    rgb = saved(Image.new("RGB", (3, 2)), tmp_path / "rgb.png")
    with pytest.raises(UnreadablePicture, match="has the mode RGB"):
        open_index_mask(rgb, (3, 2))
