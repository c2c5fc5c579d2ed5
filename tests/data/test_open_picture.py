"""Pictures of every kind come out as the RGB that they show; damaged ones are named."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data.open_picture import open_annotated, open_index_mask, open_rgb
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


SHOWN = {
    1: RAMP,
    2: RAMP[:, ::-1],
    3: RAMP[::-1, ::-1],
    4: RAMP[::-1],
    5: RAMP.T,
    6: np.rot90(RAMP, -1),
    7: np.rot90(RAMP, 2).T,
    8: np.rot90(RAMP, 1),
}
"""RAMP as the EXIF standard says that a viewer shows it, by orientation."""


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, suffix: str, tmp_path: Path) -> None:
    """A picture 10 wide and 6 high: upright, and as stored where there is an annotation, unless that has the upright size."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if suffix == "webp" else {}
    path = saved(Image.fromarray(RAMP).convert("RGB"), tmp_path / f"e.{suffix}", exif=exif, **lossless)
    assert (np.asarray(open_rgb(path))[..., 0] == SHOWN[orientation]).all()
    assert (np.asarray(open_rgb(path, (10, 6)))[..., 0] == RAMP).all()
    assert (np.asarray(open_rgb(path, boxes=True))[..., 0] == RAMP).all()
    if orientation >= 5:
        assert (np.asarray(open_rgb(path, (6, 10)))[..., 0] == SHOWN[orientation]).all()


def test_a_square_picture_stands_upright_unless_it_is_annotated(tmp_path: Path) -> None:
    """Its size can't say which way the annotation saw it, so the custom does."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(Image.fromarray(RAMP[:6, :6]), tmp_path / "s.png", exif=exif)
    assert (np.asarray(open_rgb(path))[..., 0] == np.rot90(RAMP[:6, :6], -1)).all()
    assert (np.asarray(open_rgb(path, (6, 6)))[..., 0] == RAMP[:6, :6]).all()


@pytest.mark.parametrize("values", [RAMP, RAMP.astype(np.uint16) * 257], ids=["8 bits", "16 bits"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_grey_tiff_stands_upright(orientation: int, values: np.ndarray, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(Image.fromarray(values), tmp_path / "g.tiff", exif=exif)
    assert (np.asarray(open_rgb(path))[..., 0] == SHOWN[orientation]).all()


def test_damaged_exif_leaves_the_pixels(tmp_path: Path) -> None:
    path = saved(Image.fromarray(RAMP), tmp_path / "d.png", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert (np.asarray(open_rgb(path))[..., 0] == RAMP).all()


def test_the_annotated_size_is_held_against_the_picture(tmp_path: Path) -> None:
    path = saved(Image.fromarray(RAMP), tmp_path / "a.png")
    assert open_annotated(path, (10, 6)).size == open_annotated(path, None).size == (10, 6)
    with pytest.raises(UnreadablePicture, match="the picture is 10x6, its annotation says 6x10"):
        open_annotated(path, (6, 10))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0, 100_000]], np.int32), "white is unknown"),
        (np.array([[-1, 5]], np.int32), "white is unknown"),
        (np.array([[np.nan, 0.5]], np.float32), "of the mode F"),
    ],
)
def test_numbers_without_a_known_white_are_refused(values: np.ndarray, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadablePicture, match=reason):
        open_rgb(saved(Image.fromarray(values), tmp_path / "x.tiff"))


def test_a_colour_marked_transparent(tmp_path: Path) -> None:
    picture = Image.new("RGB", (2, 1), (10, 20, 30))
    picture.putpixel((1, 0), (40, 50, 60))
    opened = open_rgb(saved(picture, tmp_path / "t.png", transparency=(10, 20, 30)))
    assert [opened.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (40, 50, 60)]


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "webp", "tiff", "ppm"])
def test_flipped_bytes_are_a_picture_or_named(suffix: str, tmp_path: Path) -> None:
    """Whatever a damaged disk makes of a file: RGB, or `UnreadablePicture` in one line."""
    rng = np.random.default_rng(0)
    whole = saved(Image.fromarray(rng.integers(0, 255, (12, 9, 3), dtype=np.uint8)), tmp_path / f"w.{suffix}")
    content, path = whole.read_bytes(), tmp_path / f"x.{suffix}"
    outcomes, reasons = set(), ""
    for _ in range(150):
        damaged = bytearray(content[: rng.integers(1, len(content) + 1)] if rng.random() < 0.3 else content)
        for place in rng.integers(0, min(len(damaged), 120), 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            outcomes.add(open_rgb(path).mode)
        except UnreadablePicture as error:
            reasons += error.reason
            outcomes.add("refused")
    assert outcomes <= {"RGB", "refused"}
    assert "refused" in outcomes
    assert "\n" not in reasons


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
    decimals = saved(Image.fromarray(np.array([[0.5, 1.7]], np.float32)), tmp_path / "f.tiff")
    with pytest.raises(UnreadablePicture, match="has the mode F"):
        open_index_mask(decimals)


def test_masks_of_sixteen_bits_keep_their_values(tmp_path: Path) -> None:
    values = np.array([[0, 300], [65535, 7]], np.uint16)
    assert open_index_mask(saved(Image.fromarray(values), tmp_path / "d.png")).tolist() == values.tolist()


def test_the_content_says_what_a_file_is_and_not_its_name(tmp_path: Path) -> None:
    """ImageNet's training set has a PNG that is called JPEG."""
    Image.fromarray(RAMP).save(tmp_path / "n.JPEG", "PNG")
    assert (np.asarray(open_rgb(tmp_path / "n.JPEG")) == RAMP[..., None]).all()
