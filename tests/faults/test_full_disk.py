"""A disk that fills up on the way: one line, and what was there before is still there. On a small disk of its own, in memory."""

import os
from pathlib import Path

import pytest

from diffusionlens.training.checkpoints.checkpoint import load_checkpoint
from tests.faults.conftest import Disk
from tests.faults.forked import finish
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.training.tiny import TINY

pytestmark = pytest.mark.slow

SHARES = (0.15, 0.4, 0.7, 0.95)


def used(place: Path) -> int:
    """Bytes, in whole pages as tmpfs counts them; files of two names once."""
    files = {path.stat().st_ino: path.stat().st_size for path in place.rglob("*")}
    return sum(-(-size // 4096) * 4096 for size in files.values())


def refused(asked: list[str], log: Path) -> str:
    finish(asked, log, code=2)
    lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, log.read_text()
    assert "Traceback" not in log.read_text()
    return lines[0]


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def tries(asked: list[str], disk: Disk, tmp_path: Path, log: Path, left: list[str]) -> None:
    """The command on disks that hold a part of what it needs: an error, and `left` is all that is there. Then on a roomy one."""
    finish([*asked, "--out", str(tmp_path / "roomy" / "out")], log)
    needed = used(tmp_path / "roomy")
    for share in SHARES:
        disk.resize(int(share * needed))
        said = refused([*asked, "--out", str(disk.place / "out")], log)
        assert any(word in said for word in ("No space left on device", "free")), said
        assert set(names(disk.place)) <= set(left), share
    disk.resize(3 * needed + 2**22)
    finish([*asked, "--out", str(disk.place / "out")], log)
    assert names(disk.place) == ["out"]


def test_measure(disk: Disk, tmp_path: Path) -> None:
    model = write_models(tmp_path)[0]
    asked = ["measure", model, "--data", DATA, "--size", "32", "--analyses", "pib,pca"]
    tries(asked, disk, tmp_path, tmp_path / "log", [])


def test_an_earlier_result_stays(disk: Disk, tmp_path: Path) -> None:
    model = write_models(tmp_path)[0]
    asked = ["measure", model, "--data", DATA, "--size", "32", "--analyses", "pib", "--out", str(disk.place / "out")]
    disk.resize(2**24)
    finish(asked, tmp_path / "log")
    before = {path: path.read_bytes() for path in disk.place.rglob("*") if path.is_file()}
    with (disk.place / "ballast").open("wb") as file:
        size = os.statvfs(disk.place).f_bavail * os.statvfs(disk.place).f_bsize
        file.write(bytes(size - 2**19))
    refused(asked, tmp_path / "log")
    (disk.place / "ballast").unlink()
    assert {path: path.read_bytes() for path in disk.place.rglob("*") if path.is_file()} == before


def test_probe(disk: Disk, tmp_path: Path) -> None:
    """Tokens lie beside the result: they may be what there is no room for."""
    model = write_models(tmp_path)[0]
    asked = [
        "probe",
        "segmentation",
        model,
        "--data",
        DATA,
        "--train",
        TRAIN,
        "--size",
        "32",
        "--seeds",
        "2",
        "--save-heads",
    ]
    asked += ["--set", "iterations=5", "--set", "points=16", "--layers", "last"]
    tries(asked, disk, tmp_path, tmp_path / "log", [])


def test_report(disk: Disk, tmp_path: Path) -> None:
    """Parts that are finished may stay, for the same command on a roomier disk."""
    models = [part for model in write_models(tmp_path) for part in ("--model", model)]
    asked = ["report", str(write_plan(tmp_path)), *models, "--data", DATA, "--train", TRAIN, "--size", "32"]
    for setting in ("pib.figures=[pca_maps]", "similarity.differences=false", "heads.figures=[]", "gain.figures=[]"):
        asked += ["--set", setting]
    tries(asked, disk, tmp_path, tmp_path / "log", [".out.parts"])


def test_train(disk: Disk, tmp_path: Path) -> None:
    """What has been saved is whole, and the run goes on from it when there is room."""
    log = tmp_path / "log"
    asked = ["train", "tiny_scenes_entmax15", "--data", "scenes:?n=40&size=32"]
    for setting in TINY:
        asked += ["--set", setting]
    finish([*asked, "--out", str(tmp_path / "roomy")], log)
    needed = used(tmp_path / "roomy")
    out = disk.place / "out"
    for share in SHARES:
        disk.resize(int(share * needed))
        said = refused([*asked, "--out", str(out)], log)
        assert "No space left on device" in said
        for path in out.rglob("*.pt"):
            load_checkpoint(path)
    resume = ["--resume"] if (out / "checkpoints" / "last.pt").exists() else []
    disk.remount(f"size={3 * needed}")
    finish([*asked, "--out", str(out), *resume], log)
    assert load_checkpoint(out / "checkpoints" / "last.pt")["step"] == 6
