"""ADE20K, Cityscapes, CamVid and VOC's trainaug: small data sets written by hand, and what the real ones hold."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data import FitTransform, UnreadablePicture, open_data
from diffusionlens.data.readers.camvid import COLOURS
from diffusionlens.errors import InputError
from tests.data.files import save_grey, save_mask, save_palette, save_picture


def masks(text: str) -> dict[str, list[list[int]]]:
    source = open_data(text)
    opened = [source.open(index) for index in range(len(source))]
    return {picture.name: picture.mask.tolist() for picture in opened if picture.mask is not None}


def ade(root: Path, values: object, split: str = "validation") -> str:
    save_picture(root / "images" / split / "a.jpg")
    save_mask(root / "annotations" / split / "a.png", values)  # type: ignore[arg-type]
    return f"ade20k:{root}"


def test_ade20k_counts_from_one_and_zero_is_void(tmp_path: Path) -> None:
    text = ade(tmp_path / "ADEChallengeData2016", [[0, 1, 2, 150], [150, 75, 1, 255]])
    expected = {"a.jpg": [[255, 0, 1, 149], [149, 74, 0, 255]]}
    assert masks(text) == masks(f"ade20k:{tmp_path}") == expected
    source = open_data(text)
    assert source.provides == {"masks", "parsing"}
    assert source.label == "ade20k-validation"
    assert list(source.classes) == list(source.mask_classes) == [str(number) for number in range(1, 151)]


@pytest.mark.parametrize("form", ["txt", "csv"])
def test_ade20k_names(form: str, tmp_path: Path) -> None:
    names = [f"thing {number}" for number in range(1, 151)]
    names[1], names[2], names[3] = "building, edifice ", "screen, silver screen", "screen, monitor"
    columns = ["Idx", "Ratio", "Train", "Val"] + (["Stuff"] if form == "csv" else [])
    between = "\t" if form == "txt" else ","
    lines = [between.join([*columns, "Name"])]
    for number, name in enumerate(names, start=1):
        # the real file has a blank behind some numbers
        fields = [f"{number} ", *["0"] * (len(columns) - 1), name if form == "txt" else name.replace(", ", ";")]
        lines.append(between.join(fields))
    text = ade(tmp_path, [[1, 1, 1, 1]] * 2)
    (tmp_path / f"objectInfo150.{form}").write_text("\n".join(lines))
    found = open_data(text).mask_classes
    joined = ", " if form == "txt" else ";"
    assert found[:5] == [
        "thing 1",
        "building",
        f"screen{joined}silver screen",
        f"screen{joined}monitor",
        "thing 5",
    ]
    (tmp_path / f"objectInfo150.{form}").write_text("\n".join(lines[:100]))
    with pytest.raises(InputError, match="names 99 of 150 classes"):
        open_data(text)


@pytest.mark.parametrize("value", [151, 200, 254])
def test_a_value_beyond_the_classes_is_refused_not_ignored(value: int, tmp_path: Path) -> None:
    source = open_data(ade(tmp_path, [[1, 1, 1, 1], [1, 1, value, 1]]))
    with pytest.raises(UnreadablePicture, match=rf"holds the value {value}, wanted 0\.\.150 or 255"):
        source.open(0)


def test_a_value_of_sixteen_bits_is_refused_too(tmp_path: Path) -> None:
    source = open_data(ade(tmp_path, [[1] * 4] * 2))
    save_grey(tmp_path / "annotations" / "validation" / "a.png", [[1, 2, 300, 65535]] * 2, 16)
    with pytest.raises(UnreadablePicture, match=r"holds the value 300, wanted 0\.\.150 or 255"):
        source.open(0)


# The column trainId of cityscapesscripts/helpers/labels.py, for the ids 0..33.
TRAIN_IDS = [255] * 7 + [0, 1, 255, 255, 2, 3, 4, 255, 255, 255, 5, 255, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
TRAIN_IDS += [255, 255, 16, 17, 18]


def cityscapes(root: Path, kind: str, values: np.ndarray, split: str = "val") -> str:
    size = (values.shape[1], values.shape[0])
    save_picture(root / "leftImg8bit" / split / "ulm" / "ulm_000000_000019_leftImg8bit.png", size)
    save_mask(root / "gtFine" / split / "ulm" / f"ulm_000000_000019_gtFine_{kind}.png", values)
    return f"cityscapes:{root}?split={split}"


def test_cityscapes_label_ids(tmp_path: Path) -> None:
    stored = np.arange(34).reshape(2, 17)
    text = cityscapes(tmp_path, "labelIds", stored)
    assert masks(text) == {"ulm/ulm_000000_000019_leftImg8bit.png": np.array(TRAIN_IDS).reshape(2, 17).tolist()}
    source = open_data(text)
    assert len(source.mask_classes) == 19
    assert [source.mask_classes[number] for number in (0, 11, 18)] == ["road", "person", "bicycle"]
    # label ids count where both are there
    cityscapes(tmp_path, "labelTrainIds", np.full((2, 17), 3))
    assert masks(text)["ulm/ulm_000000_000019_leftImg8bit.png"][0][7] == 0


def test_cityscapes_train_ids_alone(tmp_path: Path) -> None:
    text = cityscapes(tmp_path, "labelTrainIds", np.array([[0, 18, 255]]), "train")
    assert list(masks(text).values()) == [[[0, 18, 255]]]
    with pytest.raises(InputError, match=r"no split 'val'; splits there: train$"):
        open_data(f"cityscapes:{tmp_path}")
    cityscapes(tmp_path, "labelTrainIds", np.array([[0, 19, 255]]), "train")
    with pytest.raises(UnreadablePicture, match=r"the value 19, wanted a train id, 0\.\.18 or 255"):
        open_data(text).open(0)


def test_cityscapes_pictures_without_masks_are_named(tmp_path: Path) -> None:
    text = cityscapes(tmp_path, "labelIds", np.array([[7]]))
    save_picture(tmp_path / "leftImg8bit" / "val" / "bonn" / "bonn_1_leftImg8bit.png")
    reason = "its mask bonn_1_gtFine_labelIds.png does not exist"
    assert open_data(text).skipped == [("bonn/bonn_1_leftImg8bit.png", reason)]


@pytest.mark.parametrize("listed", ["relative", "segnet", "none"])
def test_camvid_eleven_classes(listed: str, tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_picture(tmp_path / "val" / f"{name}.png")
        save_mask(tmp_path / "valannot" / f"{name}.png", [[0, 10, 11, 3], [0, 0, 0, 255]])
    before = "/SegNet/CamVid/" if listed == "segnet" else ""
    if listed != "none":
        lines = [f"{before}val/{name}.png {before}valannot/{name}.png" for name in ("y", "gone", "../../x")]
        (tmp_path / "val.txt").write_text("\r\n".join(lines))
    source = open_data(f"camvid:{tmp_path}?split=val")
    expected = [[0, 10, 255, 3], [0, 0, 0, 255]]
    found = masks(f"camvid:{tmp_path}?split=val")
    assert found == ({"x.png": expected, "y.png": expected} if listed == "none" else {"val/y.png": expected})
    if listed != "none":
        assert [reason for _, reason in source.skipped] == ["listed, but the file does not exist"] * 2
    assert source.mask_classes[8] == "Car"
    with pytest.raises(InputError, match=r"no split 'test'; splits there: val$"):
        open_data(f"camvid:{tmp_path}")


@pytest.mark.parametrize("layout", ["own", "splits", "splits with a table"])
def test_camvid_colours(layout: str, tmp_path: Path) -> None:
    """Sky, Void and Wall, by their colours in label_colors.txt."""
    pixels = [[(128, 128, 128), (0, 0, 0), (64, 192, 0), (0, 0, 0)]] * 2
    pictures, labels = ("701_StillsRaw_full", "LabeledApproved_full") if layout == "own" else ("test", "test_labels")
    save_picture(tmp_path / pictures / "0001TP_1.png")
    save_mask(tmp_path / labels / "0001TP_1_L.png", pixels)
    names = sorted((set(COLOURS) - {"Void"}), key=str.lower)
    if layout == "splits with a table":
        names = ["Wall", "Sky"]
        (tmp_path / "class_dict.csv").write_text("name,r,g,b\nWall,64,192,0\nVoid,0,0,0\nSky,128,128,128\n")
    source = open_data(f"camvid:{tmp_path}")
    assert source.label == ("camvid-all" if layout == "own" else "camvid-test")
    assert sorted(source.mask_classes, key=str.lower) == sorted(names, key=str.lower)
    mask = source.open(0).mask
    assert mask is not None
    named = [source.mask_classes[value] if value != 255 else None for value in mask[1].tolist()]
    assert named == ["Sky", None, "Wall", None]
    save_mask(tmp_path / labels / "0001TP_1_L.png", [[(128, 128, 129)] * 4] * 2)
    with pytest.raises(UnreadablePicture, match="the colour 128 128 129, which is no class's"):
        source.open(0)
    save_mask(tmp_path / labels / "0001TP_1_L.png", [[1, 2, 3, 4]] * 2)
    with pytest.raises(UnreadablePicture, match=r"the mode L, wanted colours \(RGB\)"):
        source.open(0)


def test_camvid_has_the_colours_of_its_own_table() -> None:
    assert len(COLOURS) == len(set(COLOURS.values())) == 32


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("class_dict.csv", "name,r,g,b\nSky,1,2,256\n", "no name with a colour"),
        ("class_dict.csv", "name,r,g,b\nSky,1,2,3\nSky,4,5,6\n", "twice"),
        ("class_dict.csv", "name,r,g,b\n", "names no class"),
        ("label_colors.txt", "1 2 3 Sky\n1 2 3 Sea\n", "twice"),
        ("label_colors.txt", "Sky\n", "no name with a colour"),
        ("label_colors.txt", "² 2 3 Sky\n", "no name with a colour"),
        ("class_dict.csv", "name,r,g,b\n" + "x" * 200_000 + ",1,2,3\n", "is no table of colours"),
    ],
)
def test_camvid_tables_that_are_none(name: str, content: str, message: str, tmp_path: Path) -> None:
    save_picture(tmp_path / "test" / "a.png")
    save_mask(tmp_path / "test_labels" / "a_L.png", [[(0, 0, 0)] * 4] * 2)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        open_data(f"camvid:{tmp_path}")


def voc(root: Path) -> Path:
    for name in ("own", "both", "sbd", "bare"):
        save_picture(root / "JPEGImages" / f"{name}.jpg")
    for folder, names in (("SegmentationClass", ("own", "both")), ("SegmentationClassAug", ("both", "sbd"))):
        for name in names:
            save_palette(root / folder / f"{name}.png", np.full((2, 4), 20 if folder.endswith("Aug") else 3))
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "train.txt").write_text("own\nboth\n")
    return root


@pytest.mark.parametrize("lists", [{"trainaug": "own both sbd"}, {"train_aug": "own both sbd"}, {"aug": "sbd both"}])
def test_voc_trainaug(lists: dict[str, str], tmp_path: Path) -> None:
    root = voc(tmp_path / "VOC2012")
    for name, entries in lists.items():
        (root / "ImageSets" / "Segmentation" / f"{name}.txt").write_text("\n".join(entries.split()))
    found = masks(f"voc:{tmp_path}?split=trainaug")
    assert {name: mask[0][0] for name, mask in found.items()} == {"own": 3, "both": 3, "sbd": 20}
    source = open_data(f"voc:{tmp_path}?split=trainaug")
    assert len(source) == 3
    assert len(source.classes) == 20
    assert (len(source.mask_classes), source.mask_classes[0], source.mask_classes[20]) == (
        21,
        "background",
        "tvmonitor",
    )
    assert "parsing" not in source.provides


def test_voc_trainaug_without_sbd(tmp_path: Path) -> None:
    root = voc(tmp_path / "VOC2012")
    with pytest.raises(InputError, match=r"no list of trainaug: looked for trainaug\.txt"):
        open_data(f"voc:{tmp_path}?split=trainaug")
    (root / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("own\nbare\n")
    with pytest.raises(UnreadablePicture, match="the mask does not exist"):
        open_data(f"voc:{tmp_path}?split=trainaug").open(1)
    (root / "SegmentationClassAug").rename(root / "elsewhere")
    with pytest.raises(InputError, match=r"no SegmentationClassAug, .*use \?split=train$"):
        open_data(f"voc:{tmp_path}?split=trainaug")
    with pytest.raises(InputError, match="did you mean 'train'"):
        open_data(f"voc:{tmp_path}?split=trian")


def test_sizes_that_disagree_name_both_files_and_sizes(tmp_path: Path) -> None:
    source = open_data(ade(tmp_path, [[1, 1, 1]] * 2))
    with pytest.raises(UnreadablePicture) as caught:
        source.open(0)
    assert caught.value.file == str(tmp_path / "annotations" / "validation" / "a.png")
    assert "the mask is 3x2, its picture 4x2" in caught.value.reason
    assert str(tmp_path / "images" / "validation" / "a.jpg") in caught.value.reason


def test_a_rotated_picture_lies_as_its_mask_does(tmp_path: Path) -> None:
    """The mask was drawn on the stored pixels: 4 wide and 2 high, whatever a viewer shows."""
    text = ade(tmp_path, [[1, 2, 3, 4]] * 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(tmp_path / "images" / "validation" / "a.jpg", exif=exif)
    assert open_data(text).open(0).image.size == (4, 2)
    save_mask(tmp_path / "annotations" / "validation" / "a.png", [[1, 2]] * 4)  # drawn on what was shown
    assert open_data(text).open(0).image.size == (2, 4)


def test_hostile_masks_are_named(tmp_path: Path) -> None:
    source = open_data(ade(tmp_path, np.arange(8).reshape(2, 4)))
    path = tmp_path / "annotations" / "validation" / "a.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadablePicture, match="the mask is damaged"):
        source.open(0)
    save_grey(path, [[1, 2, 3, 4]], 8, claimed=(60_000, 60_000))
    with pytest.raises(UnreadablePicture, match="the mask is too large to open safely"):
        source.open(0)
    save_mask(path, np.zeros((2, 4, 3)))
    with pytest.raises(UnreadablePicture, match="the mask has the mode RGB, wanted one index a pixel"):
        source.open(0)
    path.unlink()
    with pytest.raises(UnreadablePicture, match="the mask does not exist"):
        source.open(0)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_of_any_depth_keeps_its_numbers(bits: int, tmp_path: Path) -> None:
    """Pillow stretches 2 and 4 bits to 8: class 1 would become class 85 or 17."""
    rows = [[0, 1, 1, 0], [1, min(3, 2**bits - 1), 1, 1]]
    text = ade(tmp_path, [[1] * 4] * 2)
    save_grey(tmp_path / "annotations" / "validation" / "a.png", rows, bits)
    stored = [[255 if value == 0 else value - 1 for value in row] for row in rows]
    assert masks(text) == {"a.jpg": stored}


def test_masks_stay_indexes_through_the_transform(tmp_path: Path) -> None:
    """Stored indexes 1 and 150 side by side, scaled up and down: nothing between them appears."""
    values = np.where(np.arange(60)[None] < 30, 1, 150) * np.ones((40, 1), int)
    values[:3] = 0
    text = ade(tmp_path, values)
    save_picture(tmp_path / "images" / "validation" / "a.jpg", (60, 40))
    source = open_data(text)
    for size in ((16, 16), (97, 133)):
        for fit in ("crop", "squash", "pad"):
            sample = FitTransform(size, (0.5,) * 3, (0.5,) * 3, fit)(source.open(0), 0)  # type: ignore[arg-type]
            assert sample.mask is not None
            assert sample.mask.shape == size
            assert set(sample.mask.unique().tolist()) <= {0, 149, 255}
            assert {0, 149} <= set(sample.mask.unique().tolist())


def test_sources_pass_to_other_processes(tmp_path: Path) -> None:
    """Where processes start afresh (macOS, Windows), the source is pickled for them."""
    texts = [ade(tmp_path / "ade", [[1] * 4] * 2), cityscapes(tmp_path / "city", "labelIds", np.array([[7]]))]
    for text in texts:
        again = pickle.loads(pickle.dumps(open_data(text)))
        assert torch.equal(again.open(0).mask, open_data(text).open(0).mask)  # type: ignore[arg-type]


def shares(text: str) -> dict[str, float]:
    """Share of the labelled pixels that each class has, and of all pixels that are ignored as `ignored`."""
    source = open_data(text)
    counts = torch.zeros(256, dtype=torch.int64)
    for index in range(len(source)):
        mask = source.open(index).mask
        assert mask is not None
        counts += torch.bincount(mask.flatten(), minlength=256)
    labelled = counts[:255].sum()
    found = {name: float(counts[number] / labelled) for number, name in enumerate(source.mask_classes)}
    return found | {"ignored": float(counts[255] / counts.sum())}


def test_real_street_scenes(shared_data: Path) -> None:
    """Against the files as Pillow and NumPy read them, and against what a street looks like."""
    root = shared_data / "camvid"
    for split, pictures in (("train", 40), ("val", 12), ("test", 12)):
        source = open_data(f"camvid:{root}?split={split}")
        assert (len(source), source.skipped) == (pictures, [])
        for index in range(0, pictures, 5):
            picture = source.open(index)
            by_hand = np.array(Image.open(root / f"{split}annot" / Path(picture.name).name)).astype(int)
            by_hand[by_hand == 11] = 255
            assert picture.mask is not None
            assert (picture.mask.numpy() == by_hand).all()
    found = shares(f"camvid:{root}?split=test")
    assert found["Road"] > 0.2
    assert found["Pedestrian"] < 0.02
    assert sum(share > 0 for name, share in found.items() if name != "ignored") == 11


def test_real_ade20k(shared_data: Path) -> None:
    root = shared_data / "ADEChallengeData2016"
    source = open_data(f"ade20k:{root}")
    assert (len(source), source.mask_classes[0], source.mask_classes[12]) == (3, "wall", "person")
    for index in range(3):
        picture = source.open(index)
        stored = np.array(Image.open(root / "annotations" / "validation" / f"{Path(picture.name).stem}.png")).astype(
            int
        )
        assert picture.mask is not None
        assert (picture.mask.numpy() == np.where(stored == 0, 255, stored - 1)).all()
    assert shares(f"ade20k:{root}")["sky"] > 0.3  # the three are outdoors


def test_real_voc_shares(shared_data: Path) -> None:
    """Background is two thirds, person the largest class, as in all of VOC."""
    for split in ("train", "val"):
        found = shares(f"voc:{shared_data / 'VOCdevkit'}?split={split}")
        assert 0.65 < found["background"] < 0.8
        assert (
            max((share, name) for name, share in found.items() if name not in ("background", "ignored"))[1] == "person"
        )
        assert 0.03 < found["ignored"] < 0.08
