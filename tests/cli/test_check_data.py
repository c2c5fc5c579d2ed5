"""What `check --data` says of masks and depth."""

import sys
from pathlib import Path

import numpy as np
import pytest

from diffusionlens.api import check
from diffusionlens.cli import main
from diffusionlens.cli.check import data_lines
from tests.data.files import save_grey, save_mask, save_picture


def test_the_usable_share_of_masks(tmp_path: Path) -> None:
    for name, values in (("a", [[0, 0, 0, 1]] * 2), ("b", [[1, 2, 3, 150]] * 2), ("c", [[1, 151, 1, 1]] * 2)):
        save_picture(tmp_path / "images/validation" / f"{name}.jpg")
        save_mask(tmp_path / "annotations/validation" / f"{name}.png", values)
    found = check([], f"ade20k:{tmp_path}")["data"]
    assert (found["masks"], found["mask_classes"], found["depth"]) == (2, 150, 0)
    assert found["mask_share"] == pytest.approx(10 / 16)
    assert (found["depth_share"], found["depth_range"]) == (None, None)
    assert [Path(entry["file"]).name for entry in found["unreadable"]] == ["c.png"]
    printed = "\n".join(data_lines(found))
    assert "masks         150 classes, 62.5% of the pixels are of one" in printed
    assert " m\n" not in printed


def test_the_usable_share_of_depth(tmp_path: Path) -> None:
    save_picture(tmp_path / "a.jpg")
    save_grey(tmp_path / "a.png", [[0, 0, 500, 4250], [65535, 0, 0, 0]], 16)
    save_picture(tmp_path / "b.jpg")
    save_grey(tmp_path / "b.png", np.zeros((2, 4), int).tolist(), 16)
    (tmp_path / "test.txt").write_text("a.jpg a.png 1\nb.jpg b.png 1\ngone.jpg a.png 1")
    found = check([], f"nyuv2:{tmp_path}")["data"]
    assert (found["pictures"], found["depth"], found["masks"], len(found["unreadable"])) == (2, 2, 0, 1)
    assert found["depth_share"] == pytest.approx(2 / 16)
    assert found["depth_range"] == pytest.approx([0.5, 4.25])
    assert "  depth         12.5% of the pixels have a reading, 0.5 to 4.25 m" in data_lines(found)


def test_no_reading_at_all(tmp_path: Path) -> None:
    save_picture(tmp_path / "b.jpg")
    save_grey(tmp_path / "b.png", np.zeros((2, 4), int).tolist(), 16)
    (tmp_path / "test.txt").write_text("b.jpg b.png 1")
    assert "  depth         0.0% of the pixels have a reading" in data_lines(check([], f"nyuv2:{tmp_path}")["data"])


def test_data_alone_are_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "check", "--data", "scenes:?n=3&size=32"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "3 found, 3 opened" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "give a MODEL, --data DATA, or both" in capsys.readouterr().err
