"""COCO's panoptic and semantic masks: by the published formula, from strangers, and the real ones against each other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data import Picture, UnreadablePicture, open_data
from diffusionlens.errors import InputError
from tests.data.files import save_mask, save_picture

CATEGORIES = [
    {"id": 200, "name": "rug-merged", "isthing": 0},
    {"id": 1, "name": "person", "isthing": 1},
    {"id": 92, "name": "banner", "isthing": 0},
]
SEGMENTS = [
    {"id": 8345037, "category_id": 1, "iscrowd": 0},
    {"id": 256, "category_id": 200, "iscrowd": 0},
    {"id": 7, "category_id": 1, "iscrowd": 1},
]


def colours(ids: list[list[int]]) -> np.ndarray:
    """Segment ids as COCO's panoptic API writes them (id2rgb): the lowest byte is red."""
    array = np.array(ids)
    return np.stack([array % 256, array // 256 % 256, array // 65536], -1)


def data(root: Path, segments: Any = None, **changed: Any) -> Path:
    """One picture, 1.jpg of 4x2, with its panoptic file; `changed` replaces parts of the JSON."""
    save_picture(root / "val2017" / "1.jpg")
    entry = {"image_id": 1, "file_name": "1.png", "segments_info": SEGMENTS if segments is None else segments}
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "width": 4, "height": 2}],
        "annotations": [entry],
        "categories": CATEGORIES,
    }
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / "panoptic_val2017.json").write_text(json.dumps(content | changed))
    save_mask(root / "annotations/panoptic_val2017/1.png", colours([[0, 8345037, 256, 256], [7, 7, 0, 256]]))
    return root


def opened(root: Path, query: str = "masks=panoptic") -> Picture:
    return open_data(f"coco:{root}?{query}").open(0)


def test_panoptic(tmp_path: Path) -> None:
    source = open_data(f"coco:{data(tmp_path)}?masks=panoptic")
    assert source.mask_classes == source.classes == ["person", "banner", "rug-merged"]
    assert source.provides == {"masks", "parsing"}
    picture = source.open(0)
    assert picture.mask is not None
    assert picture.mask.tolist() == [[255, 0, 2, 2], [0, 0, 255, 2]]  # void ignored, the crowd a person
    assert picture.notes == ()


def test_panoptic_keeps_the_boxes_of_the_instances(tmp_path: Path) -> None:
    data(tmp_path)
    instances = {
        "images": [{"id": 1, "file_name": "1.jpg", "width": 4, "height": 2}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 0, 2, 1]}],
        "categories": [CATEGORIES[1]],
    }
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(instances))
    source = open_data(f"coco:{tmp_path}?masks=panoptic")
    assert source.provides == {"boxes", "labels", "masks", "parsing"}
    assert (len(source.classes), len(source.mask_classes)) == (1, 3)
    assert source.open(0).boxes.tolist() == [[1, 0, 3, 1]]
    assert source.open(0).notes == ()
    assert open_data(f"coco:{tmp_path}").provides == {"boxes", "labels"}


def test_semantic(tmp_path: Path) -> None:
    data(tmp_path)
    save_mask(tmp_path / "annotations/semantic_val2017/1.png", [[0, 1, 200, 92], [255, 1, 1, 1]])
    picture = opened(tmp_path, "masks=semantic")
    assert picture.mask is not None
    assert picture.mask.tolist() == [[255, 0, 2, 1], [255, 0, 0, 0]]
    save_mask(tmp_path / "annotations/semantic_val2017/1.png", [[0, 2, 200, 92]] * 2)
    with pytest.raises(UnreadablePicture, match="holds the value 2, wanted 0, 255 or a category id"):
        opened(tmp_path, "masks=semantic")
    save_mask(tmp_path / "annotations/semantic_val2017/1.png", [[1, 1, 1, 1]])
    with pytest.raises(UnreadablePicture, match=r"the mask is 4x1, its picture 4x2 \(width x height; .*1\.jpg\)"):
        opened(tmp_path, "masks=semantic")


@pytest.mark.parametrize(
    ("segments", "mask", "note"),
    [
        ([{"id": 7, "category_id": 1}, {"id": 256, "category_id": 92}], [[255, 255, 1, 1], [0, 0, 255, 1]], "8345037 is not in"),
        ([*SEGMENTS[:2], {"id": 7, "category_id": 3}], [[255, 0, 2, 2], [255, 255, 255, 2]], "unknown category 3"),
        ([*SEGMENTS, {"id": 0, "category_id": 1}], [[255, 0, 2, 2], [0, 0, 255, 2]], None),  # void stays void
        ([], [[255] * 4] * 2, "segment 7 is not in"),
    ],
)  # fmt: skip
def test_segments_that_are_unclear_are_ignored_and_said(
    segments: Any, mask: list[list[int]], note: str | None, tmp_path: Path
) -> None:
    picture = opened(data(tmp_path, segments))
    assert picture.mask is not None
    assert picture.mask.tolist() == mask
    assert picture.notes == () if note is None else note in " ".join(picture.notes)


@pytest.mark.parametrize("segments", ["x", [7], [{"id": 7}], [{"id": [7], "category_id": 1}], {"id": 7}])
def test_segments_that_are_none(segments: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="segments_info without id or category_id"):
        opened(data(tmp_path, segments))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"annotations": [{"image_id": 1, "file_name": "1.png"}]}, "lacks segments_info"),
        ({"annotations": [{"image_id": 1, "file_name": "1.png", "segments_info": []}] * 2}, "has 2 annotations"),
        ({"annotations": 7}, "has no list 'annotations'"),
        ({"categories": [{"id": 255, "name": "x"}]}, r"an id outside 1\.\.254"),
        ({"categories": [{"id": 10**9, "name": "x"}]}, r"an id outside 1\.\.254"),
    ],
)
def test_a_panoptic_file_that_can_not_be_believed(changed: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        opened(data(tmp_path, **changed))
    assert "\n" not in str(caught.value)


def test_masks_that_are_missing_or_lead_out(tmp_path: Path) -> None:
    outside = save_mask(tmp_path / "secret.png", colours([[7] * 4] * 2))
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 4, "height": 2} for number in (1, 2, 3)]
    for number in (2, 3):
        save_picture(tmp_path / "set" / "val2017" / f"{number}.jpg")
    names = {1: "1.png", 2: f"../../../{outside.name}", 3: str(outside)}
    annotations = [{"image_id": n, "file_name": name, "segments_info": SEGMENTS} for n, name in names.items()]
    source = open_data(f"coco:{data(tmp_path / 'set', images=images, annotations=annotations)}?masks=panoptic")
    assert [source.name(index) for index in range(len(source))] == ["1.jpg"]
    assert source.skipped == [("2.jpg", "it has no panoptic mask"), ("3.jpg", "it has no panoptic mask")]


def test_a_panoptic_png_that_is_none(tmp_path: Path) -> None:
    save_mask(data(tmp_path) / "annotations/panoptic_val2017/1.png", [[1, 2, 3, 4]] * 2)
    with pytest.raises(UnreadablePicture, match=r"the mode L, wanted colours \(RGB\)"):
        opened(tmp_path)
    save_mask(tmp_path / "annotations/panoptic_val2017/1.png", colours([[7, 7]]))
    with pytest.raises(UnreadablePicture, match=r"the mask is 2x1, its picture 4x2 \(width x height; .*1\.jpg\)"):
        opened(tmp_path)


def test_the_list_of_names(tmp_path: Path) -> None:
    images = [{"id": number, "file_name": f"{number}.jpg", "width": 4, "height": 2} for number in (1, 2)]
    annotations = [{"image_id": n, "file_name": "1.png", "segments_info": SEGMENTS} for n in (1, 2)]
    data(tmp_path, images=images, annotations=annotations)
    save_picture(tmp_path / "val2017" / "2.jpg")
    for written in ("2\n", "2.jpg\nnone\n"):
        (tmp_path / "half.txt").write_text(written)
        for given in ("half.txt", str(tmp_path / "half.txt")):
            source = open_data(f"coco:{tmp_path}?masks=panoptic&list={given}")
            assert [source.name(index) for index in range(len(source))] == ["2.jpg"]
    assert source.skipped == [("none", "in half.txt, but not in the annotations")]
    with pytest.raises(InputError, match=r"\?list=gone.txt .* is no file, neither as given nor in"):
        open_data(f"coco:{tmp_path}?masks=panoptic&list=gone.txt")
    with pytest.raises(InputError, match="did you mean 'panoptic'"):
        open_data(f"coco:{tmp_path}?masks=panoptics")
    with pytest.raises(InputError, match="no semantic masks of split 'val2017'"):
        open_data(f"coco:{tmp_path}?masks=semantic")


def test_real_masks_agree_with_each_other_and_with_the_formula(shared_data: Path) -> None:
    """Three files made by others: panoptic PNG, semantic PNG, instance outlines."""
    root = shared_data / "coco"
    query = "split=train2017&n=25"
    panoptic, semantic, instances = (
        open_data(f"coco:{root}?{query}&masks={kind}") for kind in ("panoptic", "semantic", "instances")
    )
    assert len(panoptic.mask_classes) == 133
    assert len(instances.mask_classes) == 81
    content = json.loads((root / "annotations" / "panoptic_train2017.json").read_text())
    segments = {entry["file_name"]: entry["segments_info"] for entry in content["annotations"]}
    place = {key: number for number, key in enumerate(sorted(one["id"] for one in content["categories"]))}
    thing = torch.tensor([panoptic.mask_classes.index(name) for name in instances.mask_classes[1:]])
    agree, total = 0, 0
    for index in range(25):
        picture = panoptic.open(index)
        mask = picture.mask
        assert mask is not None
        assert torch.equal(mask, semantic.open(index).mask)  # type: ignore[arg-type]
        name = f"{Path(picture.name).stem}.png"
        red, green, blue = np.moveaxis(
            np.array(Image.open(root / "annotations/panoptic_train2017" / name)).astype(int), -1, 0
        )
        ids = red + 256 * green + 256**2 * blue
        by_hand = np.full(ids.shape, 255)
        for segment in segments[name]:
            by_hand[ids == segment["id"]] = place[segment["category_id"]]
            assert int((ids == segment["id"]).sum()) == segment["area"]
        assert (mask.numpy() == by_hand).all()
        outlined = instances.open(index).mask
        assert outlined is not None
        certain = (outlined > 0) & (outlined < 255) & (mask < 255)
        agree += int((thing[outlined[certain] - 1] == mask[certain]).sum())
        total += int(certain.sum())
    assert agree / total > 0.999
