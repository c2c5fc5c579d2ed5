"""NYUv2, KITTI and SUN RGB-D: units, holes, lists, hostile files, and the real ones against Pillow and NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data import FitTransform, UnreadablePicture, open_data
from diffusionlens.errors import InputError
from tests.data.files import save_grey, save_mask, save_picture

NAN = float("nan")


def depth(text: str, index: int = 0) -> torch.Tensor:
    found = open_data(text).open(index).depth
    assert found is not None
    assert found.dtype == torch.float32
    return found


def names(text: str) -> list[str]:
    source = open_data(text)
    return [source.name(index) for index in range(len(source))]


def same(found: torch.Tensor, wanted: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted), equal_nan=True, rtol=1e-7, atol=0)


def frame(folder: Path, number: str = "00001", values: list[list[int]] | None = None) -> tuple[str, str]:
    save_picture(folder / f"rgb_{number}.jpg")
    save_grey(folder / f"sync_depth_{number}.png", values or [[0, 1, 1234, 9999], [65535, 256, 10000, 65534]], 16)
    return f"{folder.name}/rgb_{number}.jpg", f"{folder.name}/sync_depth_{number}.png"


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize(
    ("listing", "folder"),
    [
        ("test.txt", "test"),
        ("test.txt", ""),
        ("nyu_test.txt", ""),
        ("nyudepthv2_test_files_with_gt.txt", "official_splits/test"),
        ("nyudepthv2_test_files_with_gt.txt", "nyu_depth_v2/official_splits/test"),
    ],
)
def test_nyuv2_is_millimetres(listing: str, folder: str, slash: str, tmp_path: Path) -> None:
    picture, depths = frame(tmp_path / folder / "kitchen_0028b")
    (tmp_path / listing).write_text(f"{slash}{picture} {slash}{depths} 518.8579\r\n\r\n")
    source = open_data(f"nyuv2:{tmp_path}")
    assert (source.label, source.provides, source.name(0)) == ("nyuv2-test", {"depth"}, picture)
    # 65535 is what 7-Scenes writes where the sensor saw nothing
    same(depth(f"nyuv2:{tmp_path}"), [[NAN, 0.001, 1.234, 9.999], [NAN, 0.256, 10.0, 65.534]])


def test_lists_are_inert_and_what_is_missing_is_named(tmp_path: Path) -> None:
    root = tmp_path / "set"
    picture, depths = frame(root / "bath")
    secret = frame(tmp_path / "secret")
    lines = [
        f"{picture} {depths}",  # behind a byte order mark
        f"{picture} None 518.9",
        picture,
        f"../{secret[0]} ../{secret[1]} 518.9",
        f"{tmp_path}/{secret[0]} {tmp_path}/{secret[1]} 518.9",
        f"{picture} ../{secret[1]} 518.9",
        f"bath/gone.jpg {depths} 518.9",
        f"{picture} bath/gone.png 518.9",
        f"{'x' * 5000} {depths} 1",
        f"a\0b {depths} 1",
    ]
    (root / "train.txt").write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    source = open_data(f"nyuv2:{root}?split=train")
    assert names(f"nyuv2:{root}?split=train") == [picture]
    reasons = [reason for _, reason in source.skipped]
    assert reasons.count("listed without a depth map") == 2
    assert reasons.count("listed, but the file does not exist") == 5
    assert f"its depth map ../{secret[1]} does not exist" in reasons
    assert "its depth map bath/gone.png does not exist" in reasons
    assert len(reasons) == len(lines) - 1
    with pytest.raises(InputError, match="no split 'tran'; splits there: train; did you mean 'train'"):
        open_data(f"nyuv2:{root}?split=tran")
    (root / "train.txt").write_text("../secret/rgb_00001.jpg ../secret/sync_depth_00001.png 1")
    with pytest.raises(InputError, match="no picture with a depth map of split 'train'; first of 1: "):
        open_data(f"nyuv2:{root}?split=train")


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    entries = [" ".join(frame(tmp_path / "room", f"{number:05}")) for number in range(4)]
    (tmp_path / "mine.txt").write_text("\n".join(entries[1:3]))
    source = open_data(f"nyuv2:{tmp_path}?list=mine.txt")
    assert (len(source), source.label) == (2, "nyuv2-mine")
    with pytest.raises(InputError, match=r"no list of pictures and depth maps: looked for test\.txt, nyu_test\.txt"):
        open_data(f"nyuv2:{tmp_path}")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_some_pictures_evenly_spaced(n: int, tmp_path: Path) -> None:
    entries = [frame(tmp_path / "room", f"{number:05}") for number in range(5)]
    (tmp_path / "test.txt").write_text("\n".join(" ".join(entry) for entry in entries))
    wanted = {1: [0], 2: [0, 2], 5: [0, 1, 2, 3, 4]}[n]
    assert names(f"nyuv2:{tmp_path}?n={n}") == [entries[place][0] for place in wanted]
    assert open_data(f"nyuv2:{tmp_path}?n={n}").open(n - 1).name == entries[wanted[-1]][0]


@pytest.mark.parametrize("n", ["0", "4", "-1", "1.5", "x", "", "9" * 5000, "١"])
def test_no_number_of_pictures(n: str, tmp_path: Path) -> None:
    entries = [frame(tmp_path / "room", f"{number:05}") for number in range(3)]
    (tmp_path / "test.txt").write_text("\n".join(" ".join(entry) for entry in entries))
    with pytest.raises(InputError, match="wanted a whole number from 1 to 3"):
        open_data(f"nyuv2:{tmp_path}?n={n}")


def test_hostile_depth_is_named(tmp_path: Path) -> None:
    picture, depths = frame(tmp_path / "room")
    (tmp_path / "test.txt").write_text(f"{picture} {depths} 1")
    source, path = open_data(f"nyuv2:{tmp_path}"), tmp_path / depths

    def refused(reason: str) -> None:
        with pytest.raises(UnreadablePicture, match=reason) as caught:
            source.open(0)
        assert caught.value.file == str(path)
        assert "\n" not in caught.value.reason

    path.write_bytes(path.read_bytes()[:45])
    refused("the depth map is damaged")
    save_grey(path, [[1, 2, 3, 4]], 16, claimed=(60_000, 60_000))
    refused("the depth map is too large to open safely")
    save_grey(path, [[1, 2, 3, 4]] * 2, 8)
    refused("the mode L, wanted 16-bit integers")
    save_mask(path, np.zeros((2, 4, 3)))
    refused("the mode RGB, wanted 16-bit integers")
    Image.fromarray(np.ones((2, 4), np.float32)).save(path, format="TIFF")
    refused("the mode F, wanted 16-bit integers")
    Image.fromarray(np.full((2, 4), 70_000, np.int32)).save(path, format="TIFF")
    refused(r"leave 0\.\.65535")
    save_grey(path, [[1, 2, 3]] * 2, 16)
    refused(rf"the depth map is 3x2, its picture 4x2 \(width x height; {tmp_path / picture}\)")
    path.unlink()
    refused("the depth map does not exist")


def test_no_reading_stays_none_through_the_transform(tmp_path: Path) -> None:
    """Every second pixel without a reading: no value between appears, and nothing is mixed with a hole."""
    values = [[1000 if column % 2 else 0 for column in range(40)] for _ in range(30)]
    picture, depths = frame(tmp_path / "room", values=values)
    save_picture(tmp_path / picture, (40, 30))
    (tmp_path / "test.txt").write_text(f"{picture} {depths} 1")
    for size in ((16, 16), (97, 61)):
        sample = FitTransform(size, (0.5,) * 3, (0.5,) * 3)(open_data(f"nyuv2:{tmp_path}").open(0), 0)
        assert sample.depth is not None
        read = sample.depth.isfinite()
        assert 0.2 < read.float().mean() < 0.8
        assert sample.depth[read].unique().tolist() == [1.0]


def kitti_frame(root: Path, drive: str, depth_folder: str, values: list[list[int]]) -> str:
    picture = f"2011_09_26/{drive}/image_02/data/0000000069.png"
    depths = f"{drive}/proj_depth/groundtruth/image_02/0000000069.png"
    save_picture(root / picture)
    save_grey(root.parent / depth_folder / depths, values, 16)
    return f"{picture} {depths} 721.5377"


@pytest.mark.parametrize(
    ("listing", "pictures", "depths"),
    [
        ("eigen_test_files_with_gt.txt", "raw", ["data_depth_annotated/train", "data_depth_annotated/val"]),
        ("kitti_eigen_test.txt", "input", ["gt_depth", "gt_depth"]),
    ],
)
def test_kitti_by_lists(listing: str, pictures: str, depths: list[str], tmp_path: Path) -> None:
    """The frames of Eigen's test split lie in both halves of the official depth."""
    values = [[0, 256, 1, 20_480], [65_535, 65_534, 0, 0]]
    lines = [kitti_frame(tmp_path / pictures, f"drive_{n}_sync", folder, values) for n, folder in enumerate(depths)]
    (tmp_path / listing).write_text("\n".join([*lines, "2011/x.png None 721.5377"]))
    source = open_data(f"kitti:{tmp_path}")
    assert (len(source), source.label) == (2, "kitti-test")
    assert source.skipped == [("2011/x.png", "listed without a depth map")]
    for index in range(2):
        same(depth(f"kitti:{tmp_path}", index), [[NAN, 1.0, 1 / 256, 80.0], [NAN, 65534 / 256, NAN, NAN]])


def test_kitti_object_folders(tmp_path: Path) -> None:
    save_picture(tmp_path / "training/image_2/000000.png")
    save_picture(tmp_path / "training/image_2/000001.png")
    for kind, value in (("velodyne_raw", 512), ("groundtruth", 256)):
        save_grey(tmp_path / f"training/proj_depth/{kind}/image_02/000000.png", [[value] * 4] * 2, 16)
    same(depth(f"kitti:{tmp_path}"), [[1.0] * 4] * 2)
    assert open_data(f"kitti:{tmp_path}").skipped == [("000001.png", "its depth map 000001.png does not exist")]
    with pytest.raises(InputError, match="splits there: training; did you mean 'training'"):
        open_data(f"kitti:{tmp_path}?split=train")


def rotated(millimetres: int) -> int:
    """How SUN RGB-D stores them: the upper three of 16 bits go to the lower end."""
    bits = f"{millimetres:016b}"
    return int(bits[3:] + bits[:3], 2)


def sun_frame(root: Path, frame: str, raw: list[list[int]], filled: list[list[int]]) -> None:
    save_picture(root / frame / "image" / "0000103.jpg")
    for folder, values in (("depth", raw), ("depth_bfx", filled)):
        save_grey(root / frame / folder / "0000103.png", [[rotated(value) for value in row] for row in values], 16)


@pytest.fixture
def sun(tmp_path: Path) -> Path:
    raw = [[0, 1, 1234, 7999], [8000, 8191, 9000, 65535]]
    for number, frame in enumerate(("kv1/b3dodata/img_0063", "kv2/kinect2data/000002-resize", "xtion/a/b")):
        sun_frame(tmp_path / "SUNRGBD", frame, raw, [[1000 + number] * 4] * 2)
    return tmp_path


def test_sunrgbd_bits_are_rotated_back(sun: Path) -> None:
    same(depth(f"sunrgbd:{sun}"), [[NAN, 0.001, 1.234, 7.999], [8.0, 8.0, 8.0, NAN]])
    same(depth(f"sunrgbd:{sun}?depth=bfx", 1), [[1.001] * 4] * 2)
    wanted = ["kv1/b3dodata/img_0063", "kv2/kinect2data/000002-resize", "xtion/a/b"]
    for root in (sun, sun / "SUNRGBD"):
        assert names(f"sunrgbd:{root}") == [f"{frame}/image/0000103.jpg" for frame in wanted]
    with pytest.raises(InputError, match="wanted raw or bfx"):
        open_data(f"sunrgbd:{sun}?depth=filled")
    with pytest.raises(InputError, match=r"no split 'test'; splits there: all$"):
        open_data(f"sunrgbd:{sun}?split=test")


def test_sunrgbd_lists(sun: Path) -> None:
    sun_frame(sun, "outside/frame", [[1000] * 4] * 2, [[1000] * 4] * 2)
    frames = ["SUNRGBD/kv2/kinect2data/000002-resize", "SUNRGBD/gone", "SUNRGBD/../outside/frame"]
    lines = [f"{frame}/image/0000103.jpg {frame}/depth/0000103.png" for frame in frames]
    (sun / "SUNRGBD_val_splits.txt").write_text("\n".join(lines))
    source = open_data(f"sunrgbd:{sun}")
    assert (len(source), source.label) == (1, "sunrgbd-test")
    assert source.name(0) == "kv2/kinect2data/000002-resize/image/0000103.jpg"
    assert [file for file, _ in source.skipped] == ["gone/image", "../outside/frame/image"]
    assert len(open_data(f"sunrgbd:{sun}?split=all")) == 3


def test_sunrgbd_lists_of_the_toolbox(sun: Path) -> None:
    """allsplit.mat written as text has the paths of its authors' machine."""
    frame = "/n/fs/sun3d/data/SUNRGBD/xtion/a/b"
    (sun / "train.txt").write_text(f"{frame}/image/0000103.jpg\n")
    for root in (sun, sun / "SUNRGBD"):
        text = f"sunrgbd:{root}?split=train" if root == sun else f"sunrgbd:{root}?list={sun / 'train.txt'}"
        assert names(text) == ["xtion/a/b/image/0000103.jpg"]
    assert open_data(f"sunrgbd:{sun}").label == "sunrgbd-all"


def test_frames_with_no_or_several_files(sun: Path) -> None:
    save_picture(sun / "SUNRGBD/xtion/a/b/image/another.jpg")
    (sun / "SUNRGBD/kv1/b3dodata/img_0063/depth/0000103.png").unlink()
    reason = "wanted one file in this folder of the frame"
    skipped = [("kv1/b3dodata/img_0063/depth", reason), ("xtion/a/b/image", reason)]
    assert open_data(f"sunrgbd:{sun}").skipped == skipped
    with pytest.raises(InputError, match=r"has no frame of SUN RGB-D: wanted folders with the folders image and depth"):
        open_data(f"sunrgbd:{sun / 'SUNRGBD/kv1/b3dodata/img_0063/image'}")


def test_real_indoor_depth(shared_data: Path) -> None:
    """Every depth map as Pillow and NumPy read it; a room is between .3 and 10 m deep."""
    root = shared_data / "indoor_rgbd"
    for split, pictures in (("train", 70), ("test", 25)):
        source = open_data(f"nyuv2:{root}?split={split}")
        assert (len(source), source.skipped) == (pictures, [])
        for index in range(0, pictures, 6):
            picture = source.open(index)
            path = root / split / Path(picture.name).parent / f"sync_depth_{Path(picture.name).stem.split('_')[1]}.png"
            stored = np.array(Image.open(path)).astype(float)
            stored[(stored == 0) | (stored == 65535)] = NAN
            assert picture.depth is not None
            assert np.allclose(picture.depth.numpy(), stored / 1000, rtol=1e-6, equal_nan=True)
            read = picture.depth[picture.depth.isfinite()]
            assert len(read) > 0.4 * picture.depth.numel()
            assert read.min() > 0.3
            assert read.max() < 10


def test_real_sunrgbd_depth(shared_data: Path) -> None:
    """Every pixel, with the bits moved as text; the filled maps have no hole, the raw ones have."""
    root = shared_data / "sunrgbd_sample"
    for which, folder in (("raw", "depth"), ("bfx", "depth_bfx")):
        source = open_data(f"sunrgbd:{root}?depth={which}")
        assert len(source) == 2
        for index in range(2):
            picture = source.open(index)
            place = (root / picture.name).parents[1] / folder
            stored = np.array(Image.open(next(place.glob("*.png"))))
            bits = {value: f"{value:016b}" for value in np.unique(stored).tolist()}
            metres = {value: int(text[-3:] + text[:-3], 2) / 1000 for value, text in bits.items()}
            by_hand = np.vectorize(metres.get)(stored)
            assert picture.depth is not None
            assert np.allclose(picture.depth.nan_to_num(0).numpy(), by_hand, rtol=1e-6)
            assert ((stored == 0).mean() > 0.05) == (which == "raw")
            assert 0.3 < by_hand[by_hand > 0].min() < by_hand.max() < 10


def test_real_kitti_depth(shared_data: Path) -> None:
    """Against the distances at which KITTI's own 3-D labels put the objects (their middle; the LiDAR sees the front)."""
    root = shared_data / "kitti_sample"
    source = open_data(f"kitti:{root}")
    assert len(source) == 3
    compared = 0
    for index in range(3):
        picture = source.open(index)
        assert picture.depth is not None
        read = picture.depth.isfinite()
        assert read.float().mean() == pytest.approx(0.043, abs=0.01)  # one sweep of the LiDAR
        assert 3 < picture.depth[read].min() < picture.depth[read].max() < 100
        for line in (root / "training" / "label_2" / f"{Path(picture.name).stem}.txt").read_text().splitlines():
            kind, *numbers = line.split()
            if kind in ("DontCare", "Pedestrian"):  # through the legs of a pedestrian one sees the wall behind
                continue
            left, top, right, bottom, *_, distance = (float(value) for value in numbers[3:13])
            inside = picture.depth[int(top) : int(bottom), int(left) : int(right)]
            assert float(inside.nanmedian()) == pytest.approx(distance, rel=0.1)
            compared += 1
    assert compared == 5
