"""A picture with an EXIF orientation and its annotation lie on each other, in every data set."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffusionlens.data import Picture, UnreadablePicture, open_data
from diffusionlens.data.open_picture import open_index_mask
from tests.data.files import save_grey, save_mask

ROWS, COLUMNS = slice(8, 16), slice(24, 32)
BOX = (24, 8, 32, 16)
SHOWN: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.T,
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).T,
    8: lambda stored: np.rot90(stored, 1),
}
"""What a viewer shows of stored pixels, by the EXIF standard."""


def stored(size: tuple[int, int] = (48, 40), value: int = 1) -> np.ndarray:
    """An object in one corner: no turn and no mirror leaves it where it is."""
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[ROWS, COLUMNS] = value
    return pixels


def save_turned(path: Path, orientation: int, size: tuple[int, int] = (48, 40)) -> Path:
    """The object white on black."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(stored(size, 255)).convert("RGB").save(path, exif=exif, quality=95)
    return path


def white(picture: Picture) -> np.ndarray:
    return np.asarray(picture.image.convert("L")) > 127


def xml(size: tuple[int, int] | None, name: str = "cat", box: tuple[int, ...] = BOX) -> str:
    stated = "" if size is None else f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    names = zip(("xmin", "ymin", "xmax", "ymax"), (box[0] + 1, box[1] + 1, *box[2:]), strict=True)
    corners = "".join(f"<{key}>{value}</{key}>" for key, value in names)
    return f"<annotation>{stated}<object><name>{name}</name><bndbox>{corners}</bndbox></object></annotation>"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def voc(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "JPEGImages/a.jpg", orientation, size)
    save_mask(root / "SegmentationClass/a.png", mask)
    put(root / "Annotations/a.xml", xml(mask.shape[::-1]))
    put(root / "ImageSets/Segmentation/val.txt", "a\n")
    return f"voc:{root}"


def voc_unsized(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    text = voc(root, orientation, size, mask)
    put(root / "Annotations/a.xml", xml(None))
    return text


def voc_of_masks(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    text = voc(root, orientation, size, mask)
    (root / "Annotations/a.xml").unlink()
    (root / "Annotations").rmdir()
    return text


def voc_of_boxes(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    text = voc(root, orientation, size, mask)
    (root / "SegmentationClass/a.png").unlink()
    (root / "SegmentationClass").rmdir()
    put(root / "Annotations/a.xml", xml(None))
    return text


def ade(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "images/validation/a.jpg", orientation, size)
    save_mask(root / "annotations/validation/a.png", mask + 1)
    return f"ade20k:{root}"


def cityscapes(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "leftImg8bit/val/x/x_1_leftImg8bit.png", orientation, size)
    save_mask(root / "gtFine/val/x/x_1_gtFine_labelTrainIds.png", mask)
    return f"cityscapes:{root}"


def camvid(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "test/a.png", orientation, size)
    save_mask(root / "testannot/a.png", mask)
    return f"camvid:{root}"


def coco(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "val2017/a.jpg", orientation, size)
    y, x = (int(values.min()) for values in np.nonzero(mask))
    box = [x, y, 8, 8]
    outline = [[x, y, x + 8, y, x + 8, y + 8, x, y + 8]]
    instance = {"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": 0, "segmentation": outline}
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": mask.shape[1], "height": mask.shape[0]}],
        "annotations": [instance],
        "categories": [{"id": 1, "name": "cat", "isthing": 1}],
    }
    put(root / "annotations/instances_val2017.json", json.dumps(content))
    segments = [{"id": 1, "category_id": 1, "iscrowd": 0}]
    panoptic = content | {"annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": segments}]}
    put(root / "annotations/panoptic_val2017.json", json.dumps(panoptic))
    save_mask(root / "annotations/panoptic_val2017/a.png", np.stack([mask, 0 * mask, 0 * mask], -1))
    return f"coco:{root}"


def panoptic(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    return coco(root, orientation, size, mask) + "?masks=panoptic"


def nyuv2(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "a.jpg", orientation, size)
    save_grey(root / "a.png", (1000 + 1000 * mask.astype(int)).tolist(), 16)
    put(root / "test.txt", "a.jpg a.png 1\n")
    return f"nyuv2:{root}"


def kitti(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "a.png", orientation, size)
    save_grey(root / "d.png", (256 + 256 * mask.astype(int)).tolist(), 16)
    put(root / "test.txt", "a.png d.png 1\n")
    return f"kitti:{root}"


def sunrgbd(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    frame = root / "kv1/NYUdata/NYU0001"
    save_turned(frame / "image/a.jpg", orientation, size)
    save_grey(frame / "depth/a.png", ((1000 + 1000 * mask.astype(int)) << 3).tolist(), 16)
    return f"sunrgbd:{root}?split=all"


def folder(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "a.jpg", orientation, size)
    put(root / "a.xml", xml(mask.shape[::-1]))
    return f"folder:{root}"


def folder_unsized(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    text = folder(root, orientation, size, mask)
    put(root / "a.xml", xml(None))
    return text


def imagenet(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "val/n01440764/a.JPEG", orientation, size)
    put(root / "val_boxes/a.xml", xml(mask.shape[::-1], "n01440764"))
    return f"imagenet:{root}"


def tiny_imagenet(root: Path, orientation: int, size: tuple[int, int], mask: np.ndarray) -> str:
    save_turned(root / "val/images/a.JPEG", orientation, size)
    put(root / "wnids.txt", "n01440764\n")
    put(root / "val/val_annotations.txt", f"a.JPEG\tn01440764\t{BOX[0]}\t{BOX[1]}\t{BOX[2] - 1}\t{BOX[3] - 1}\n")
    return f"tiny-imagenet:{root}"


SETS = [
    voc, voc_unsized, voc_of_masks, voc_of_boxes, ade, cityscapes, camvid, coco, panoptic, nyuv2, kitti, sunrgbd, folder,
    folder_unsized, imagenet, tiny_imagenet,
]  # fmt: skip


def agreeing(picture: Picture) -> int:
    """How many annotations there are, all of which lie on the white object."""
    there, found = white(picture), 0
    assert there.sum() == 64
    if picture.mask is not None:
        around = int(picture.mask[0, 0])  # 0, or ignored
        assert ((picture.mask.numpy() != around) == there).all()
        found += 1
    if picture.depth is not None:
        assert (picture.depth.numpy() == np.where(there, 2, 1)).all()
        found += 1
    for x0, y0, x1, y1 in picture.boxes.int().tolist():
        assert there[y0:y1, x0:x1].sum() == (y1 - y0) * (x1 - x0) == 64
        found += 1
    return found


@pytest.mark.parametrize("data", SETS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("size", [(48, 40), (48, 48)], ids=["wide", "square"])
def test_annotations_are_of_the_stored_pixels(
    size: tuple[int, int], orientation: int, data: Callable[..., str], tmp_path: Path
) -> None:
    picture = open_data(data(tmp_path, orientation, size, stored(size))).open(0)
    assert (white(picture) == stored(size)).all()
    assert agreeing(picture) >= 1


@pytest.mark.parametrize("data", [voc_of_masks, ade, coco, panoptic, nyuv2], ids=lambda one: one.__name__)
@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_an_annotation_of_the_upright_size_is_of_the_upright_picture(
    orientation: int, data: Callable[..., str], tmp_path: Path
) -> None:
    """Some labelling tools show the picture upright and write what was drawn on it."""
    shown = np.ascontiguousarray(SHOWN[orientation](stored()))
    picture = open_data(data(tmp_path, orientation, (48, 40), shown)).open(0)
    assert (white(picture) == shown).all()
    assert agreeing(picture) >= 1


@pytest.mark.parametrize("orientation", SHOWN)
def test_a_picture_that_has_a_label_alone_stands_upright(orientation: int, tmp_path: Path) -> None:
    save_turned(tmp_path / "cat/a.jpg", orientation)
    save_turned(tmp_path / "dog/a.jpg", 1)
    picture = open_data(f"folder:{tmp_path}").open(0)
    assert (white(picture) == SHOWN[orientation](stored())).all()


@pytest.mark.parametrize("orientation", SHOWN)
def test_an_annotation_of_another_size_is_refused(orientation: int, tmp_path: Path) -> None:
    source = open_data(ade(tmp_path, orientation, (48, 40), stored((47, 40))))
    with pytest.raises(UnreadablePicture, match="the mask is 47x40, its picture"):
        source.open(0)


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("orientation", SHOWN)
def test_a_mask_is_never_turned(orientation: int, kind: str, tmp_path: Path) -> None:
    """Pillow turns TIFFs by itself."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    for values in (stored(), stored().astype(np.uint16) * 300):
        Image.fromarray(values).save(tmp_path / f"m.{kind}", exif=exif)
        assert (open_index_mask(tmp_path / f"m.{kind}").numpy() == values).all()
