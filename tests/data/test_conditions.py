"""The machine's own troubles are not taken for damage: a shortage ends the run, what may not be read is skipped and said."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens import conditions
from diffusionlens.data import UnreadablePicture, open_data
from diffusionlens.data.batches import load_batches
from diffusionlens.data.open_picture import open_index_mask, open_rgb
from diffusionlens.data.readers import voc_xml
from diffusionlens.data.readers.voc_xml import read_voc_xml
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.errors import InputError
from diffusionlens.training.views.loader import load_views
from diffusionlens.training.views.sampler import BatchPlan, RunSampler

TRANSFORM = FitTransform((8, 8), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

OPENERS: dict[str, Callable[[Path], Any]] = {
    "picture": lambda path: open_rgb(path / "a.png"),
    "mask": lambda path: open_index_mask(path / "a.png"),
    "XML": lambda path: read_voc_xml(path / "a.xml"),
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in "abcd":
        Image.new("L", (9, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.xml").write_text("<annotation/>")
    return tmp_path


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException, only: str = "") -> None:
    """Every file whose name ends in `only` fails to open with `error`."""
    true_open, true_parse = Path.open, voc_xml.parse

    def failing(path: Path, *given: Any, **named: Any) -> Any:
        if str(path).endswith(only):
            raise error
        return true_open(path, *given, **named)

    def parse(path: Path) -> Any:
        if str(path).endswith(only):
            raise error
        return true_parse(path)

    monkeypatch.setattr(Path, "open", failing)
    monkeypatch.setattr(voc_xml, "parse", parse)


def of_system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("kind", list(OPENERS))
def test_too_many_open_files_end_the_run(
    kind: str, number: int, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, of_system(number))
    with pytest.raises(InputError, match=r"too many files are open; allow more .*ulimit -n.*--workers"):
        OPENERS[kind](pictures)


@pytest.mark.parametrize("kind", list(OPENERS))
def test_a_machine_without_memory_ends_the_run(kind: str, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, of_system(errno.ENOMEM))
    with pytest.raises(InputError, match=r"no memory left; give fewer --workers"):
        OPENERS[kind](pictures)


@pytest.mark.parametrize("kind", list(OPENERS))
def test_a_file_that_asks_for_too_much_memory_is_skipped(
    kind: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers lie; the run ends only where not even an ordinary picture would find room."""
    broken(monkeypatch, MemoryError())
    with pytest.raises(UnreadablePicture, match="takes more memory than there is"):
        OPENERS[kind](pictures)
    monkeypatch.setattr(conditions, "_ORDINARY", 2**62)
    with pytest.raises(InputError, match="no memory left"):
        OPENERS[kind](pictures)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, "may not be read (Permission denied)"), (errno.EIO, "can't be read (Input/output error)")],
)
@pytest.mark.parametrize("kind", list(OPENERS))
def test_what_can_not_be_read_is_not_called_damaged(
    kind: str, number: int, reason: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, of_system(number))
    with pytest.raises(UnreadablePicture) as caught:
        OPENERS[kind](pictures)
    assert caught.value.reason.endswith(reason)
    assert not {"damaged", "cut", "valid"} & set(caught.value.reason.split())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("kind", list(OPENERS))
def test_a_pipe_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    for name in ("a.png", "a.xml"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UnreadablePicture, match=r"can't be read \(not a regular file\)"):
        OPENERS[kind](tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_place_of_a_file_of_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    os.mkfifo(tmp_path / "annotations/instances_val2017.json")
    with pytest.raises(
        InputError, match=r"instances_val2017\.json can't be read \(not a regular file\); wanted a COCO file"
    ):
        open_data(f"coco:{tmp_path}")


def test_errors_that_damage_provokes_are_still_damage() -> None:
    for error in (OSError("image file is truncated"), OSError(errno.EINVAL, "Invalid argument"), ValueError("x")):
        assert conditions.reason_of(error) is None


@pytest.mark.parametrize(
    "words",
    [
        "Too many open files. Communication with the workers is no longer possible.",  # torch, three times
        "unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
        "open file failed because of errno 24 on fopen: Too many open files, file path: a.pth",
        "received 0 items of ancdata",  # multiprocessing
        "Too many open files (os error 24)",  # Rust, so safetensors
        "Caught RuntimeError in worker process 0.\nRuntimeError: received 0 items of ancdata",
    ],
)
def test_a_shortage_that_is_told_in_words(words: str) -> None:
    with pytest.raises(InputError, match="too many files are open"):
        conditions.refuse_shortage(RuntimeError(words), "reading")


@pytest.mark.parametrize("name", ["montblancdata", "too many open files"])
def test_a_path_may_hold_such_words(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    source = open_data(f"folder:{folder}")
    reasons = [
        entry.reason for _, skipped in load_batches(source, TRANSFORM, range(len(source)), 2, 0) for entry in skipped
    ]
    assert not reasons or reasons == ["can't be read (Too many levels of symbolic links)"]
    conditions.refuse_shortage(ValueError(f"no such picture: '/data/{name}/a.png'"), "reading")
    conditions.refuse_shortage(OSError(errno.ELOOP, "Too many levels", f"/data/{name}"), "reading")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shortage_is_one_line_out_of_a_worker_too(
    workers: int, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, of_system(errno.EMFILE), only="c.png")
    source = open_data(f"folder:{pictures}")
    with pytest.raises(InputError) as caught:
        list(load_batches(source, TRANSFORM, range(4), 2, workers))
    assert "too many files are open" in str(caught.value)
    assert str(caught.value).startswith(str(pictures / "c.png"))
    sampler = RunSampler(BatchPlan(4, 2, seed=0), 0, 2)

    def crops(picture: Image.Image, epoch: int, index: int) -> list[torch.Tensor]:
        return [torch.from_numpy(np.asarray(picture).copy())]

    with pytest.raises(InputError, match=rf"^{pictures / 'c.png'} can't be opened: too many files are open"):
        list(load_views(source, crops, sampler, workers, torch.device("cpu")))


def test_a_folder_that_may_not_be_looked_into_is_not_left_out_in_silence(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = os.scandir

    def scandir(place: Any) -> Any:
        if str(place).endswith(("closed", "lost+found")):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return true(place)

    monkeypatch.setattr("os.scandir", scandir)
    (pictures / "lost+found").mkdir()
    assert len(open_data(f"folder:{pictures}")) == 4
    (pictures / "closed").mkdir()
    with pytest.raises(InputError, match=r"closed may not be read .Permission denied.; wanted every folder"):
        open_data(f"folder:{pictures}")


LISTS = {
    "class_dict.csv": ("camvid:", {"val/a.png": "", "val_labels/a_L.png": "", "class_dict.csv": "name,r,g,b\n"}),
    "objectInfo150.txt": ("ade20k:", {"images/validation/a.jpg": "", "annotations/validation/a.png": "", "objectInfo150.txt": ""}),  # noqa: E501
    "instances_val2017.json": ("coco:", {"val2017/a.jpg": "", "annotations/instances_val2017.json": "{}"}),
    "val_annotations.txt": ("tiny-imagenet:", {"val/images/a.JPEG": "", "val/val_annotations.txt": ""}),
    "val.txt": ("voc:", {"JPEGImages/a.jpg": "", "ImageSets/Segmentation/val.txt": "a\n"}),
    "nyu_test.txt": ("nyuv2:", {"nyu_test.txt": "a b\n"}),
}  # fmt: skip


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("name", list(LISTS))
def test_lists_that_can_not_be_read(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, files = LISTS[name]
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    broken(monkeypatch, of_system(number), only=name)
    split = "?split=val" if kind == "camvid:" else ""
    with pytest.raises(InputError) as caught:
        open_data(f"{kind}{tmp_path}{split}")
    wanted = "may not be read (Permission denied); wanted" if number == errno.EACCES else "too many files are open"
    assert wanted in str(caught.value)
