"""COCO files from strangers: a bad entry is one clear line or left out by name, and never background."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as rle_tools

from diffusionlens.data import Picture, UnreadablePicture, open_data
from diffusionlens.data.readers.coco_file import instance_mask
from diffusionlens.errors import InputError

IMAGE = {"id": 1, "file_name": "1.png", "width": 40, "height": 30}
CATEGORY = {"id": 5, "name": "thing"}
SQUARE = [[10, 10, 20, 10, 20, 20, 10, 20]]


def instance(**changed: Any) -> dict[str, Any]:
    whole = {"id": 1, "image_id": 1, "category_id": 5, "bbox": [10, 10, 10, 10], "segmentation": SQUARE, "iscrowd": 0}
    return {key: value for key, value in (whole | changed).items() if value is not ...}


def spec(root: Path, annotations: list[Any], images: Any = None, categories: Any = None) -> str:
    (root / "annotations").mkdir()
    (root / "val2017").mkdir()
    Image.new("RGB", (40, 30)).save(root / "val2017" / "1.png")
    content = {"images": images or [IMAGE], "annotations": annotations, "categories": categories or [CATEGORY]}
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return f"coco:{root}"


def opened(root: Path, annotations: list[Any]) -> Picture:
    return open_data(spec(root, annotations)).open(0)


def ignored(picture: Picture) -> np.ndarray:
    assert picture.mask is not None
    return (picture.mask == 255).numpy()


@pytest.mark.parametrize(
    ("bbox", "note"),
    [
        (..., "instance 1: it has no bbox"),
        (["ten", 1, 2, 3], "instance 1: its bbox is ['ten', 1, 2, 3], wanted four numbers: x, y, width, height"),
        ([1, 2, 3], "instance 1: its bbox is [1, 2, 3], wanted four numbers"),
        ([float("nan"), 1, 2, 3], "instance 1: its bbox is [nan, 1, 2, 3], wanted four numbers"),
        ([5, 6, -2, 3], "instance 1: the box [5, 6, -2, 3] (x, y, width, height) has no area"),
    ],
)
def test_a_box_that_is_none_is_named_in_the_words_of_the_file(bbox: Any, note: str, tmp_path: Path) -> None:
    found = opened(tmp_path, [instance(bbox=bbox)])
    assert found.boxes.shape == (0, 4)
    assert any(text.startswith(note) for text in found.notes), found.notes


FULL_SQUARE = np.zeros((30, 40), bool)
FULL_SQUARE[10:20, 10:20] = True


@pytest.mark.parametrize(
    "segmentation",
    [
        ...,
        [],
        "x",
        7,
        [[1, 1, 5, 5]],  # pycocotools would take four numbers for a box
        [[1, 1, 5, 5, 9]],
        [[1, 1, 5, 5, 9, "x"]],
        [[1, 1, 5, 5, 9, float("nan")]],
        [[0, 0, 1e8, 0, 1e8, 1e8]],  # pycocotools would end the process
        [[0, 0, 1e300, 0, 1e300, 1e300]],
        {"size": [30, 40], "counts": [0, 5_000_000]},
        {"size": [30, 40], "counts": [-5, 1205]},
        {"size": [40, 30], "counts": [1200]},
        {"size": [100_000, 100_000], "counts": [10**10]},
        {"size": [30, 40], "counts": "PPPPPPPPPPPPoooooooooooo"},
        {"size": [30, 40], "counts": "\u00e9"},
        {"size": [30, 40]},
    ],
)
def test_an_object_without_a_usable_outline_is_ignored_not_background(segmentation: Any, tmp_path: Path) -> None:
    # The second object keeps the file one that has outlines.
    other = instance(id=2, bbox=[0, 0, 4, 4], segmentation=[[0, 0, 4, 0, 4, 4, 0, 4]])
    picture = opened(tmp_path, [instance(segmentation=segmentation), other])
    assert picture.boxes.tolist() == [[10, 10, 20, 20], [0, 0, 4, 4]]
    assert (ignored(picture) == FULL_SQUARE).all()
    assert picture.mask is not None
    assert (picture.mask[:4, :4] == 1).all()
    assert any("segmentation is not understood" in note for note in picture.notes)


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"category_id": 99}, "unknown category 99"),
        ({"category_id": [5]}, "unknown category"),
        ({"category_id": ...}, "unknown category None"),
        ({"iscrowd": "0"}, "iscrowd is '0', wanted 0 or 1"),
    ],
)
def test_an_object_of_unclear_kind_has_no_box_and_no_background(
    changed: dict[str, Any], note: str, tmp_path: Path
) -> None:
    picture = opened(tmp_path, [instance(**changed)])
    assert len(picture.boxes) == 0
    assert (ignored(picture) == FULL_SQUARE).all()
    assert note in picture.notes[0]


def test_an_object_that_may_be_anywhere(tmp_path: Path) -> None:
    picture = opened(tmp_path, [instance(bbox="x", segmentation=[[1, 2]])])
    assert ignored(picture).all()
    assert len(picture.boxes) == 0


def test_crowds_lie_below_objects_and_small_above_large(tmp_path: Path) -> None:
    """A diagonal band has a larger bounding box than the square on it, but that is not what counts: its pixels do."""
    crowd = instance(id=1, iscrowd=1, segmentation=[[8, 8, 22, 8, 22, 22, 8, 22]])
    thin = instance(id=2, category_id=6, bbox=[0, 0, 40, 30], segmentation=[[0, 0, 2, 0, 40, 30, 38, 30]])
    text = spec(tmp_path, [thin, instance(id=3), crowd], categories=[CATEGORY, {"id": 6, "name": "band"}])
    picture = open_data(text).open(0)
    assert picture.mask is not None
    square = picture.mask[10:20, 10:20]
    assert (square == 2).any()  # the band is smaller, so it crosses the square
    assert set(square.unique().tolist()) == {1, 2}  # and nothing of both is lost to the crowd
    assert (picture.mask[8, 14:20] == 255).all()
    assert picture.crowd.tolist() == [False, False, True]


def test_ids_that_are_used_twice_or_missing(tmp_path: Path) -> None:
    """Two annotations with one id stay two objects."""
    picture = opened(tmp_path, [instance(id=1), instance(id=1, bbox=[0, 0, 5, 5]), instance(id=...)])
    assert picture.boxes.tolist() == [[10, 10, 20, 20], [0, 0, 5, 5], [10, 10, 20, 20]]


@pytest.mark.parametrize(
    ("part", "entries", "message"),
    [
        ("images", [IMAGE, IMAGE], "'images' has 1 twice"),
        ("images", [IMAGE | {"id": [1]}], r"'images' has \[1\] as an id"),
        ("categories", [CATEGORY, CATEGORY], "'categories' has 5 twice"),
        ("categories", [{"id": None, "name": "x"}], "'categories' has None as an id"),
        ("annotations", [instance(image_id={})], "has the image_id {}"),
        ("annotations", ["x"], "entry 0 of 'annotations' lacks image_id"),
    ],
)
def test_a_file_that_can_not_be_believed(part: str, entries: list[Any], message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"annotations": [], part: entries}
    with pytest.raises(InputError, match=message) as caught:
        open_data(spec(tmp_path, given["annotations"], given.get("images"), given.get("categories")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", ["x", float("inf"), float("nan"), 0, -4, 39.5, None])
def test_a_picture_without_a_size_is_skipped(side: Any, tmp_path: Path) -> None:
    source = open_data(
        spec(tmp_path, [], [IMAGE | {"id": 2, "width": side}, IMAGE, IMAGE | {"id": 3, "file_name": "../x"}])
    )
    assert len(source) == 1
    assert source.skipped == [
        ("1.png", "its entry states no width and height in pixels"),
        ("../x", "listed, but the file does not exist"),
    ]


def test_a_picture_that_may_not_be_looked_at_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder may be closed to this user, so that even asking whether it exists is refused."""
    there = spec(tmp_path, [], [IMAGE, IMAGE | {"id": 2, "file_name": "closed/2.png"}])
    refused: dict[str, Any] = {"stat": Path.stat, "open": Path.open}
    for name, true in refused.items():

        def closed(path: Path, *args: Any, true: Any = true, **named: Any) -> Any:
            if path.parent.name == "closed":
                raise PermissionError(13, "Permission denied")
            return true(path, *args, **named)

        monkeypatch.setattr(Path, name, closed)
    source = open_data(there)
    assert [source.name(index) for index in range(len(source))] == [IMAGE["file_name"], "closed/2.png"]
    with pytest.raises(UnreadablePicture, match=r"may not be read \(Permission denied\)"):
        source.open(1)


def test_boxes_alone_are_no_masks(tmp_path: Path) -> None:
    source = open_data(spec(tmp_path, [instance(segmentation=...)]))
    assert source.provides == {"boxes", "labels"}
    picture = source.open(0)
    assert picture.mask is None
    assert picture.notes == ()


def test_the_splits_that_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no instances of split 'val': .*; splits there: val2017"):
        open_data(spec(tmp_path, []) + "?split=val")


@given(
    height=st.integers(5, 60),
    width=st.integers(5, 60),
    points=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_polygon_covers_its_inside(height: int, width: int, points: list[tuple[float, float]]) -> None:
    """Triangles, against geometry: pixel centres more than a pixel from every edge are in or out for certain."""
    corners = np.array([(x * width, y * height) for x, y in points])
    found = instance_mask({"segmentation": [corners.ravel().tolist()]}, (height, width))
    assert found is not None
    centres = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), -1)
    sides, distances = [], []
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        edge, to = end - start, centres - start
        sides.append(edge[0] * to[..., 1] - edge[1] * to[..., 0])
        along = np.clip((to @ edge) / max(float(edge @ edge), 1e-12), 0, 1)
        distances.append(np.linalg.norm(to - along[..., None] * edge, axis=-1))
    within = (np.array(sides) > 0).all(0) | (np.array(sides) < 0).all(0)
    certain = np.min(distances, axis=0) > 1
    assert (found.numpy() == within)[certain].all()


@given(st.lists(st.integers(0, 1), min_size=12 * 7, max_size=12 * 7))
@settings(max_examples=30, deadline=None)
def test_both_forms_of_rle_are_the_mask_that_went_in(values: list[int]) -> None:
    mask = np.array(values, np.uint8).reshape(12, 7)
    packed = rle_tools.encode(np.asfortranarray(mask))
    runs, last = [0], 0  # counted by hand, down the columns
    for value in mask.T.ravel().tolist():
        if value != last:
            runs.append(0)
            last = value
        runs[-1] += 1
    for counts in (packed["counts"].decode(), runs):
        found = instance_mask({"segmentation": {"size": [12, 7], "counts": counts}}, (12, 7))
        assert found is not None
        assert (found.numpy() == mask).all()
