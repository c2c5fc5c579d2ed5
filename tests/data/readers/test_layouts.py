"""Finding the files: links, same names, near misses of the root, and XML that belongs to another picture."""

import pickle
from pathlib import Path

import pytest
from PIL import Image

from diffusionlens.data import UnreadablePicture, open_data
from diffusionlens.data.readers.layout import inside
from diffusionlens.errors import InputError


def picture(path: Path, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def annotate(path: Path, left: int, name: str = "thing", size: tuple[object, object] | None = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stated = "" if size is None else f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    box = f"<bndbox><xmin>{left}</xmin><ymin>1</ymin><xmax>{left + 4}</xmax><ymax>9</ymax></bndbox>"
    path.write_text(f"<annotation>{stated}<object><name>{name}</name>{box}</object></annotation>")


def left_edges(text: str) -> dict[str, float]:
    source = open_data(text)
    opened = (source.open(index) for index in range(len(source)))
    return {one.name: float(one.boxes[0, 0]) for one in opened if len(one.boxes)}


@pytest.mark.parametrize("kind", ["imagenet", "folder"])
def test_same_names_in_two_folders_keep_their_own_boxes(kind: str, tmp_path: Path) -> None:
    for place, name in enumerate(("a", "b")):
        picture(tmp_path / "val" / name / "1.jpg")
        annotate(tmp_path / "xml" / name / "1.xml", 1 + 20 * place, name)
    root = tmp_path if kind == "imagenet" else tmp_path / "val"
    assert left_edges(f"{kind}:{root}?boxes={tmp_path / 'xml'}") == {"a/1.jpg": 0, "b/1.jpg": 20}


@pytest.mark.parametrize("kind", ["imagenet", "folder"])
def test_one_xml_for_two_pictures_belongs_to_neither(kind: str, tmp_path: Path) -> None:
    for name in ("a/1.jpg", "b/1.jpg", "b/2.jpg"):
        picture(tmp_path / "val" / name)
    for name in ("1.xml", "2.xml"):
        annotate(tmp_path / "xml" / name, 5)
    root = tmp_path if kind == "imagenet" else tmp_path / "val"
    text = f"{kind}:{root}?boxes={tmp_path / 'xml'}"
    assert left_edges(text) == {"b/2.jpg": 4}
    reason = "several pictures or XML files are named 1"
    assert open_data(text).skipped == [("a/1.jpg", reason), ("b/1.jpg", reason)]


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    picture(tmp_path / "store" / "n01" / "x.jpg")
    split = tmp_path / "set" / "val"
    split.mkdir(parents=True)
    try:
        (split / "n01").symlink_to(tmp_path / "store" / "n01", target_is_directory=True)
        (split / "circle").symlink_to(split, target_is_directory=True)
    except OSError:
        pytest.skip("this system lets no one make links")
    source = open_data(f"imagenet:{tmp_path / 'set'}")
    assert [source.name(index) for index in range(len(source))] == ["n01/x.jpg"]


def test_hidden_files_are_no_pictures(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    (tmp_path / "._a.jpg").write_bytes(b"what macOS leaves on other disks")
    (tmp_path / ".cache").mkdir()
    picture(tmp_path / ".cache" / "thumb.jpg")
    assert len(open_data(f"folder:{tmp_path}")) == 1


def test_splits_are_no_classes(tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "test/cat/2.jpg"):
        picture(tmp_path / name)
    assert open_data(f"folder:{tmp_path}").provides == set()
    assert open_data(f"folder:{tmp_path / 'train'}").classes == ["cat"]


@pytest.mark.parametrize("size", [None, ("inf", 30), ("nan", 30), ("1e999", 1), ("0", "0"), ("x", 30)])
def test_a_size_that_is_none_states_nothing(size: tuple[object, object] | None, tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    annotate(tmp_path / "a.xml", 5, size=size)
    assert left_edges(f"folder:{tmp_path}") == {"a.jpg": 4}


def test_xml_of_another_picture(tmp_path: Path) -> None:
    picture(tmp_path / "val" / "a.jpg")
    annotate(tmp_path / "val" / "a.xml", 5, size=(400, 300))
    with pytest.raises(UnreadablePicture, match="the picture is 40x30, its annotation says 400x300"):
        open_data(f"folder:{tmp_path / 'val'}").open(0)
    # ImageNet states the size that its boxes are in; a scaled picture is fine, one of another shape is not.
    scaled = open_data(f"imagenet:{tmp_path}?boxes={tmp_path / 'val'}").open(0)
    assert scaled.boxes.tolist()[0] == pytest.approx([0.4, 0, 0.9, 0.9])
    annotate(tmp_path / "val" / "a.xml", 5, size=(300, 400))
    with pytest.raises(UnreadablePicture, match="another shape"):
        open_data(f"imagenet:{tmp_path}?boxes={tmp_path / 'val'}").open(0)


def test_xml_that_is_no_annotation(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    (tmp_path / "a.xml").write_text("<html><object/></html>")
    with pytest.raises(UnreadablePicture, match="is a <html>, wanted VOC's <annotation>"):
        open_data(f"folder:{tmp_path}").open(0)


def test_imagenet_given_at_its_pictures_finds_its_boxes(tmp_path: Path) -> None:
    picture(tmp_path / "Data/CLS-LOC/val/v1.JPEG")
    annotate(tmp_path / "Annotations/CLS-LOC/val/v1.xml", 5)
    for root in (tmp_path, tmp_path / "Data/CLS-LOC"):
        assert left_edges(f"imagenet:{root}") == {"v1.JPEG": 4}


def voc(root: Path) -> None:
    for name in ("a", "b"):
        picture(root / "JPEGImages" / f"{name}.jpg")
        annotate(root / "Annotations" / f"{name}.xml", 5, "cat")
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "val.txt").write_text("a\nb\n")
    (lists / "cat_val.txt").write_text("a  1\nb -1\n")


def test_voc_lists(tmp_path: Path) -> None:
    voc(tmp_path / "VOC2012")
    assert len(open_data(f"voc:{tmp_path}")) == 2
    assert [open_data(f"voc:{tmp_path}?split=cat_val").name(0)] == ["a"]
    assert len(open_data(f"voc:{tmp_path}?split=cat_val")) == 1
    with pytest.raises(InputError, match=r"no list of split 'test': .*; splits there: val$"):
        open_data(f"voc:{tmp_path}?split=test")
    with pytest.raises(InputError, match=r"looked for ImageSets/Segmentation/val\.txt"):
        open_data(f"voc:{tmp_path}?task=segmentation")


def test_voc_without_boxes_provides_masks_alone(tmp_path: Path) -> None:
    picture(tmp_path / "JPEGImages" / "a.jpg")
    (tmp_path / "ImageSets" / "Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Segmentation" / "val.txt").write_text("a")
    (tmp_path / "SegmentationClass").mkdir()
    Image.new("L", (40, 30), 3).save(tmp_path / "SegmentationClass" / "a.png")
    source = open_data(f"voc:{tmp_path}")
    assert source.provides == {"masks"}
    assert source.open(0).label is None
    Image.new("L", (40, 30), 77).save(tmp_path / "SegmentationClass" / "a.png")
    with pytest.raises(UnreadablePicture, match=r"holds the value 77, wanted 0\.\.20 or 255"):
        source.open(0)


@pytest.mark.parametrize("wrong", ["outer", "outer/VOC2012/JPEGImages", "outer/VOC2012/ImageSets/Main"])
def test_a_root_close_by_is_suggested(wrong: str, tmp_path: Path) -> None:
    voc(tmp_path / "outer" / "x" / "VOC2012" if wrong == "outer" else tmp_path / "outer" / "VOC2012")
    with pytest.raises(InputError, match="did you mean ") as caught:
        open_data(f"voc:{tmp_path / wrong}")
    assert len(open_data("voc:" + str(caught.value).rsplit("did you mean ", 1)[1].rstrip("?"))) == 2


def test_tiny_imagenet_pictures_without_a_line(tmp_path: Path) -> None:
    for name in ("1.JPEG", "2.JPEG"):
        picture(tmp_path / "val" / "n01" / "images" / name, (64, 64))
    (tmp_path / "val" / "n01" / "n01_boxes.txt").write_text("1.JPEG\t0\t0\t63\t63\r\n")
    source = open_data(f"tiny-imagenet:{tmp_path}")
    assert source.open(0).boxes.tolist() == [[0, 0, 64, 64]]
    assert source.skipped == [("val/n01/images/2.JPEG", "not in n01_boxes.txt")]


@pytest.mark.parametrize(
    "name", ["", " ", "..", "../a", "a/../../b", "/etc/passwd", "C:\\x", "..\\a", "\\\\host\\x", "a\0b"]
)
def test_names_that_lead_out_are_none(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, name) is None


def test_names_that_stay(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b..c.jpg") == tmp_path / "a" / "b..c.jpg"


@pytest.mark.parametrize("kind", ["folder", "imagenet", "voc"])
def test_sources_pass_to_other_processes(kind: str, tmp_path: Path) -> None:
    """Where processes start afresh (macOS, Windows), the source is pickled for them."""
    voc(tmp_path / "VOC2012")
    picture(tmp_path / "val" / "n01" / "x.jpg")
    source = open_data(f"{kind}:{tmp_path}")
    again = pickle.loads(pickle.dumps(source))
    assert [again.name(index) for index in range(len(again))] == [source.name(index) for index in range(len(source))]
    assert again.open(0).boxes.tolist() == source.open(0).boxes.tolist()
