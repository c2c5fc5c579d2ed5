"""What stands where a result goes is never lost, and a failure leaves nothing behind."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from diffusionlens.errors import InputError
from diffusionlens.pages.directory import CONTENTS, check_target, whole_directory


def kept_by(error: pytest.ExceptionInfo[InputError]) -> Path:
    """Where the message says that the new result is."""
    return Path(str(error.value).rpartition(" in ")[2])


def result(place: Path, content: str) -> None:
    place.mkdir(parents=True)
    for name in ("manifest.json", "results.csv"):
        (place / name).write_text(content)


def write(out: Path, content: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    with whole_directory(out) as directory:
        meanwhile()
        for name in ("manifest.json", "results.csv"):
            (directory / name).write_text(content)


def test_a_manifest_alone_does_not_make_a_result(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "manifest.json").write_text("{}")
    (site / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="not a result of diffusionlens"):
        write(site, "new")
    assert (site / "thesis.tex").read_text() == "precious"


def test_what_was_put_beside_an_earlier_result_stays(tmp_path: Path) -> None:
    result(tmp_path / "out", "old")
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=r"also notes\.txt, which would be lost"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"
    (tmp_path / "out" / "notes.txt").rename(tmp_path / "out" / ".DS_Store")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "results.csv").read_text() == "new"


def test_what_is_put_there_during_the_run_stays_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result(out, "old")
    with pytest.raises(InputError, match="which would be lost") as error:
        write(out, "hours of work", lambda: (out / "notes.txt").write_text("precious"))
    assert (out / "notes.txt").read_text() == "precious"
    assert (kept_by(error) / "results.csv").read_text() == "hours of work"
    assert sorted(tmp_path.iterdir()) == sorted([out, kept_by(error)])


@pytest.mark.parametrize("failing", [1, 2])
def test_an_earlier_result_survives_a_rename_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    out = tmp_path / "out"
    result(out, "old")
    renames, replace = iter(range(1, 9)), Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if next(renames) == failing:
            raise OSError(errno.EACCES, "Permission denied")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InputError, match="Permission denied") as error:
        write(out, "new")
    assert (out / "results.csv").read_text() == "old"
    assert (kept_by(error) / "results.csv").read_text() == "new"
    assert sorted(tmp_path.iterdir()) == sorted([out, kept_by(error)])


def test_a_failure_that_cannot_be_undone_says_where_the_earlier_result_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    result(out, "old")
    renames, replace = iter(range(1, 9)), Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if next(renames) in (2, 3):
            raise OSError(errno.EACCES, "Permission denied")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(InputError, match="the earlier result is in") as error:
        write(out, "new")
    earlier = Path(str(error.value).partition("the earlier result is in ")[2].partition(". The new")[0])
    assert (earlier / "results.csv").read_text() == "old"
    assert (kept_by(error) / "results.csv").read_text() == "new"


def test_parents_made_for_a_failed_result_go_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fault"), whole_directory(tmp_path / "a" / "b" / "out"):
        raise ValueError("fault")
    assert not list(tmp_path.iterdir())


def test_what_a_result_may_hold_is_declared(tmp_path: Path) -> None:
    """An undeclared name would make the next run refuse to replace this one."""
    with pytest.raises(AssertionError, match="extra"), whole_directory(tmp_path / "out") as directory:
        (directory / "extra").mkdir()
    assert not list(tmp_path.iterdir())
    design = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    assert all(f"DIR/{name}" in design for name in CONTENTS)


def test_the_directory_one_is_in_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for out in (Path(), tmp_path, tmp_path.parent):
        with pytest.raises(InputError, match="the directory you are in"):
            check_target(out)
    check_target(Path("out"))
