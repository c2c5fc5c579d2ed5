"""Every layout: a small data set written by hand, hostile annotations, and the counts of the real one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as rle_tools

from diffusionlens.data import UnreadablePicture, open_data
from diffusionlens.errors import InputError


def picture(path: Path, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 30)).save(path)


def voc_xml(objects: str, size: tuple[int, int] = (40, 30)) -> str:
    return f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{objects}</annotation>"


def voc_object(name: str, box: tuple[object, ...], difficult: int = 0) -> str:
    corners = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for name in ("a", "b"):
        picture(root / "JPEGImages" / f"{name}.jpg")
        values = np.zeros((30, 40), np.uint8)
        values[5:9, 3:7] = 8
        (root / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(root / "SegmentationClass" / f"{name}.png")
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "Annotations" / f"{name}.xml").write_text(voc_xml(voc_object("cat", (4, 6, 7, 9))))
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("a\nb\nmissing\n../../../etc/passwd\n\n")
    return tmp_path


def test_voc(voc: Path) -> None:
    for root in (voc, voc / "VOCdevkit", voc / "VOCdevkit" / "VOC2012"):
        source = open_data(f"voc:{root}")
        assert [source.name(i) for i in range(len(source))] == ["a", "b"]
    assert [reason for _, reason in source.skipped] == ["listed, but the file does not exist"] * 2
    opened = source.open(0)
    assert opened.boxes.tolist() == [[3, 5, 7, 9]]  # 1-based and inclusive -> 0-based and exclusive
    assert opened.label == source.classes.index("cat") == 7
    assert opened.mask is not None
    ys, xs = torch.nonzero(opened.mask == 8, as_tuple=True)
    assert [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] == [3, 5, 7, 9]  # the mask lies in the box


@pytest.mark.parametrize(
    ("objects", "boxes", "note"),
    [
        ("", 0, None),
        (voc_object("cat", (1, 1, 41, 31)), 1, None),  # a pixel over the edge: cut
        (voc_object("cat", (10, 10, 9, 20)), 0, "the box xmin 10, ymin 10, xmax 9, ymax 20 has no area"),
        (voc_object("cat", (20, 10, 5, 20)), 0, "the box xmin 20, ymin 10, xmax 5, ymax 20 has no area"),
        (voc_object("cat", (100, 100, 200, 201)), 0, "xmin 100, ymin 100, xmax 200, ymax 201 lies outside the picture"),
        (voc_object("cat", ("ten", 1, 2, 3)), 0, "cat (object 1): its <xmin> is 'ten', wanted a number"),
        (voc_object("cat", ("inf", 1, 2, 3)), 0, "its <xmin> is 'inf', wanted a number"),
        (voc_object("cat", (1, 1, "", 3)), 0, "its <xmax> is '', wanted a number"),
        (
            voc_object("cat", (1, 1, 9, 9)) + voc_object("cat", (1, 1, 9, 9)).replace("<ymin>1</ymin>", ""),
            1,
            "cat (object 2): its <ymin> is missing",
        ),
        ("<object><name>cat</name></object>", 0, "cat (object 1): it has no <bndbox>"),
        (voc_object("unicorn", (1, 1, 2, 3)), 0, "unknown class 'unicorn'"),
        ("<object></object>", 0, "unknown class ''"),
        (voc_object("cat", (1, 1, 9, 9)) + voc_object("dog", (5, 5, 5, 5), 1), 2, None),
    ],
)
def test_hostile_boxes(voc: Path, objects: str, boxes: int, note: str | None) -> None:
    (voc / "VOCdevkit/VOC2012/Annotations/a.xml").write_text(voc_xml(objects))
    opened = open_data(f"voc:{voc}").open(0)
    assert len(opened.boxes) == boxes
    assert (opened.boxes[:, 2:] > opened.boxes[:, :2]).all()
    assert (opened.boxes >= 0).all()
    assert (opened.boxes <= torch.tensor([40, 30, 40, 30])).all()
    assert note is None or note in " ".join(opened.notes)


BOMB = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "x"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'
REMOTE = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation>&a;</annotation>'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no element found: line 1, column 0"),
        ("<annotation>\n <size>\n</annotation>", "mismatched tag: line 3, column 2"),
        ("no xml", "syntax error: line 1, column 0"),
        (BOMB, "it declares entities"),
        (REMOTE, "it declares entities"),
        ("\x00\x01", "line 1, column"),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "unknown encoding"),
    ],
)
def test_hostile_xml(voc: Path, content: str, why: str) -> None:
    (voc / "VOCdevkit/VOC2012/Annotations/a.xml").write_text(content)
    with pytest.raises(UnreadablePicture, match=f"not valid XML .*{why}"):
        open_data(f"voc:{voc}").open(0)


def test_sizes_that_disagree(voc: Path) -> None:
    (voc / "VOCdevkit/VOC2012/Annotations/a.xml").write_text(voc_xml("", (50, 30)))
    with pytest.raises(UnreadablePicture, match="the picture is 40x30, its annotation says 50x30"):
        open_data(f"voc:{voc}").open(0)
    picture(voc / "VOCdevkit/VOC2012/SegmentationClass/b.png", (39, 30))
    Image.new("L", (39, 30)).save(voc / "VOCdevkit/VOC2012/SegmentationClass/b.png")
    with pytest.raises(UnreadablePicture, match="the mask is 39x30, its picture 40x30"):
        open_data(f"voc:{voc}").open(1)


def coco_file(root: Path, annotations: list[dict[str, object]]) -> None:
    for name in ("1.jpg", "2.jpg"):
        picture(root / "val2017" / name)
    images = [
        {"id": 2, "file_name": "2.jpg", "width": 40, "height": 30},
        {"id": 1, "file_name": "1.jpg", "width": 40, "height": 30},
    ]
    categories = [{"id": 7, "name": "train"}, {"id": 3, "name": "car"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))


def test_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square = np.zeros((30, 40), np.uint8, order="F")
    square[10:20, 10:20] = 1
    packed = rle_tools.encode(square)
    packed["counts"] = packed["counts"].decode()
    counts = [10 * 30 + 10, *([10, 20] * 9), 10, 40 * 30 - 20 * 30 + 10]
    annotations: list[dict[str, object]] = [
        {"id": 1, "image_id": 1, "category_id": 7, "bbox": [2, 3, 10, 8], "iscrowd": 0,
         "segmentation": [[2, 3, 12, 3, 12, 11, 2, 11]]},
        {"id": 2, "image_id": 1, "category_id": 3, "bbox": [10, 10, 10, 10], "segmentation": packed, "iscrowd": 0},
        {"id": 3, "image_id": 2, "category_id": 3, "bbox": [10, 10, 10, 10], "iscrowd": 1,
         "segmentation": {"size": [30, 40], "counts": counts}},
        {"id": 4, "image_id": 2, "category_id": 99, "bbox": [1, 1, 2, 2], "segmentation": []},
        {"id": 5, "image_id": 2, "category_id": 3, "bbox": [1, 1, 0, 2], "segmentation": [[1, 2]]},
    ]  # fmt: skip
    coco_file(tmp_path, annotations)
    source = open_data(f"coco:{tmp_path}")
    assert capsys.readouterr().out == ""
    assert source.classes == ["car", "train"]
    assert [source.name(i) for i in range(2)] == ["1.jpg", "2.jpg"]
    first, second = source.open(0), source.open(1)
    assert sorted(first.boxes.tolist()) == [[2, 3, 12, 11], [10, 10, 20, 20]]
    assert sorted(first.category.tolist()) == [0, 1]
    assert first.mask is not None
    assert first.mask[5, 5] == 2
    assert first.mask[15, 15] == 1
    assert second.crowd.tolist() == [True]
    assert second.mask is not None
    assert (second.mask == 255).sum() == 100 + 4  # the crowd, and the box of what has an unknown class and no outline
    assert second.label is None  # a crowd is no object
    assert any("unknown category 99" in note for note in second.notes)
    assert any("no area" in note for note in second.notes)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"images": 3}', '{"images": [{}], "annotations": [], "categories": []}']
)
def test_hostile_coco(tmp_path: Path, content: str) -> None:
    coco_file(tmp_path, [])
    (tmp_path / "annotations" / "instances_val2017.json").write_text(content)
    with pytest.raises(InputError) as caught:
        open_data(f"coco:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_imagenet_flat_with_xml(tmp_path: Path) -> None:
    for name, wnid in (("ILSVRC2012_val_1", "n02"), ("ILSVRC2012_val_2", "n01")):
        picture(tmp_path / "val" / f"{name}.JPEG")
        (tmp_path / "Annotations" / "val").mkdir(parents=True, exist_ok=True)
        # ImageNet's stated size is off for some files: the box is in its pixels.
        (tmp_path / "Annotations" / "val" / f"{name}.xml").write_text(
            voc_xml(voc_object(wnid, (1, 1, 40, 30)), (80, 60))
        )
    picture(tmp_path / "val" / "ILSVRC2012_val_3.JPEG")
    source = open_data(f"imagenet:{tmp_path}")
    assert (len(source), source.classes) == (2, ["n01", "n02"])
    assert source.skipped == [("ILSVRC2012_val_3.JPEG", "no XML annotation")]
    assert source.open(0).label == 1
    assert source.open(0).boxes.tolist() == [[0, 0, 20, 15]]


def test_imagenet_class_folders_without_boxes(tmp_path: Path) -> None:
    picture(tmp_path / "val" / "n01" / "a.JPEG")
    picture(tmp_path / "val" / "n02" / "b.JPEG")
    source = open_data(f"imagenet:{tmp_path}")
    assert source.provides == {"labels"}
    assert [source.open(i).label for i in range(2)] == [0, 1]


def test_tiny_imagenet_both_layouts(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "n01" / "images" / "n01_0.JPEG", (64, 64))
    (tmp_path / "train" / "n01" / "n01_boxes.txt").write_text("n01_0.JPEG\t0\t10\t63\t20\nn01_1.JPEG\t0\t0\t1\t1\n")
    picture(tmp_path / "val" / "images" / "val_0.JPEG", (64, 64))
    picture(tmp_path / "val" / "images" / "val_1.JPEG", (64, 64))
    lines = "val_0.JPEG\tn01\t5\t5\t5\t5\nval_1.JPEG\tn01\tx\t0\t1\t1\n../../secret.JPEG\tn01\t0\t0\t1\t1\n"
    (tmp_path / "val" / "val_annotations.txt").write_text(lines)
    train = open_data(f"tiny-imagenet:{tmp_path}?split=train")
    assert len(train) == 1
    assert train.open(0).boxes.tolist() == [[0, 10, 64, 21]]  # last pixels are inside
    assert train.skipped == [("n01_1.JPEG", "listed, but the file does not exist")]
    val = open_data(f"tiny-imagenet:{tmp_path}")
    assert len(val) == 2
    assert val.open(0).boxes.tolist() == [[5, 5, 6, 6]]
    assert val.open(1).boxes.tolist() == []
    assert "not four numbers" in val.open(1).notes[0]


def test_folder(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "deep" / "2.PNG")
    (tmp_path / "a" / "1.xml").write_text(voc_xml(voc_object("thing", (1, 1, 5, 5))))
    source = open_data(f"folder:{tmp_path}")
    assert source.classes == ["a", "b"]
    assert source.provides == {"boxes", "labels"}
    assert source.open(0).boxes.tolist() == [[0, 0, 5, 5]]
    assert source.open(1).label == 1
    picture(tmp_path / "flat.jpg")
    assert open_data(f"folder:{tmp_path}").provides == {"boxes"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "does not say how the pictures are laid out"),
        ("voc2012:x", "did you mean voc:"),
        ("voc:/nowhere/at/all", "does not exist"),
        ("voc:", "names no folder"),
        ("voc:{empty}", "looked for VOC2012/JPEGImages, VOCdevkit/VOC2012/JPEGImages, JPEGImages"),
        ("coco:{empty}", "looked for annotations/instances_val2017.json"),
        ("imagenet:{empty}", "no split 'val'"),
        ("tiny-imagenet:{empty}", "no split 'val'"),
        ("folder:{empty}", "holds no pictures"),
        ("folder:{empty}?split=val", "is not an option"),
        ("voc:{empty}?split=val&split=train", "given twice"),
    ],
)
def test_wrong_roots(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_data(text.replace("{empty}", str(tmp_path)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_counts_of_the_real_data(shared_data: Path) -> None:
    """As its README states."""
    for split, pictures in (("train", 160), ("val", 160)):
        assert len(open_data(f"voc:{shared_data / 'VOCdevkit'}?split={split}")) == pictures
    boxes = {}
    for name, text in {
        "voc train": f"voc:{shared_data / 'VOCdevkit'}?split=train",
        "voc val": f"voc:{shared_data / 'VOCdevkit'}?split=val",
        "coco val": f"coco:{shared_data / 'coco'}",
    }.items():
        source = open_data(text)
        boxes[name] = sum(len(source.open(index).boxes) for index in range(len(source)))
    assert boxes["voc train"] + boxes["voc val"] == 652
    assert boxes["coco val"] == 382
    assert len(open_data(f"coco:{shared_data / 'coco'}?split=train2017")) == 100
    assert len(open_data(f"tiny-imagenet:{shared_data / 'tiny-imagenet-subset'}")) == 2000


def test_real_boxes_hold_real_masks(shared_data: Path) -> None:
    """VOC's masks and boxes were drawn independently: labelled pixels of a lone class lie in its boxes."""
    source = open_data(f"voc:{shared_data / 'VOCdevkit'}?split=val")
    inside, total = 0, 0
    for index in range(0, 160, 5):
        opened = source.open(index)
        assert opened.mask is not None
        if opened.label is None:
            continue
        own = opened.mask == opened.label + 1
        covered = torch.zeros_like(own)
        for x0, y0, x1, y1 in opened.boxes.int().tolist():
            covered[y0:y1, x0:x1] = True
        inside, total = inside + int((own & covered).sum()), total + int(own.sum())
    assert inside / total > 0.97
