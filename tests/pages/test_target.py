"""A target that could not be written in the end is refused at the start, and a refusal leaves nothing behind."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffusionlens.errors import InputError
from diffusionlens.pages.directory import check_target, whole_directory

NOBODY = 65534


def everything_in(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file/out", "is a file, and no directory"),
        ("file/deep/out", "is a file, and no directory"),
        ("dangling", "link to nothing"),
        ("circle", "choose another directory"),
        ("x" * 256, "File name too long"),
        ("new/" + "x" * 256 + "/out", "File name too long"),
        ("/".join(["x" * 200] * 21), "File name too long"),
        ("a\0b", "NUL"),
        ("\ud800", "is no path here"),
        ("~no such user/x", "home folder of an unknown user"),
        ("", "--out is empty"),
        ("/proc/nowhere/out", "can't be made"),
        ("/", "or above it"),
    ],
)
def test_what_cannot_be_made(out: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    before = everything_in(tmp_path)
    with pytest.raises(InputError, match=message):
        check_target(out)
    assert everything_in(tmp_path) == before


def test_what_can_be_made_is_tried_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for out, place in {
        tmp_path / "deep" / "er" / "out": tmp_path / "deep" / "er" / "out",
        tmp_path / ("x" * 250): tmp_path / ("x" * 250),
        "~/out": tmp_path / "out",
        tmp_path / "a" / ".." / "b": tmp_path / "b",
    }.items():
        assert check_target(out) == place
        assert everything_in(tmp_path) == []
        with whole_directory(out) as directory:
            (directory / "results.csv").write_text("new")
        assert (place / "results.csv").read_text() == "new"
        for path in reversed(everything_in(tmp_path)):
            path.rmdir() if path.is_dir() else path.unlink()


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert check_target(tmp_path / "link") == tmp_path / "real"
    with whole_directory(tmp_path / "link") as directory:
        (directory / "results.csv").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "results.csv").read_text() == "new"
    (tmp_path / "real" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="not a result"):
        check_target(tmp_path / "link")


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == mounted)
    with pytest.raises(InputError, match=r"mount point.*mounted/result"):
        check_target(mounted)
    check_target(mounted / "result")


def test_a_full_disk_is_noticed_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        check_target(tmp_path / "deep" / "out")
    assert everything_in(tmp_path) == []


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory that everybody may pass through; the test runs as a user who is not root, if it ran as root."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        for part in ("locked", "locked/out", "open", "open/out", "sticky", "sticky/out"):
            (place / part).mkdir()
        if os.geteuid() == 0:
            os.chown(place / "locked" / "out", NOBODY, -1)
            os.chown(place / "open", NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            (place / "open").chmod(0o755)
            yield place
        finally:
            os.seteuid(os.getuid())
            for part in ("locked", "open/out"):
                (place / part).chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="needs the permissions of POSIX")
def test_a_place_that_may_not_be_renamed_is_refused(as_nobody: Path) -> None:
    os.seteuid(os.getuid())
    (as_nobody / "locked").chmod(0o555)
    (as_nobody / "open" / "out").chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(NOBODY)
    with pytest.raises(InputError, match="locked can't be written to"):
        check_target(as_nobody / "locked" / "new")
    with pytest.raises(InputError, match="locked can't be written to"):
        check_target(as_nobody / "locked" / "out")  # it is writable itself, but the rename needs its parent
    with pytest.raises(InputError, match="can't be replaced by you"):
        check_target(as_nobody / "open" / "out")
    assert check_target(as_nobody / "open" / "new")
    assert not [path for path in everything_in(as_nobody) if path.name.startswith(".diffusionlens")]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs two users")
def test_another_users_directory_in_a_shared_place_is_refused(as_nobody: Path) -> None:
    os.seteuid(0)
    (as_nobody / "sticky").chmod(0o1777)
    (as_nobody / "sticky" / "out").chmod(0o777)
    os.seteuid(NOBODY)
    with pytest.raises(InputError, match="can't be replaced by you"):
        check_target(as_nobody / "sticky" / "out")
    assert check_target(as_nobody / "sticky" / "new")
