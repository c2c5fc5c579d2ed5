"""A disk that may only be read: refused before any work where something must be written, and good enough to read from."""

from pathlib import Path

import pytest

from tests.faults.conftest import Disk
from tests.faults.forked import finish
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.training.tiny import TINY, tiny

pytestmark = pytest.mark.slow

PICTURES = "scenes:?n=40&size=32"


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    return write_models(tmp_path)


def asked_for(command: str, tmp_path: Path, models: list[str]) -> list[str]:
    if command == "train":
        return ["train", "tiny_scenes_entmax15", "--data", PICTURES, *(part for one in TINY for part in ("--set", one))]
    if command == "report":
        given = [part for model in models for part in ("--model", model)]
        return ["report", str(write_plan(tmp_path)), *given, "--data", DATA, "--train", TRAIN, "--size", "32"]
    probe = ["probe", "segmentation", models[0], "--data", DATA, "--train", TRAIN, "--size", "32"]
    return ["measure", models[0], "--data", DATA, "--size", "32"] if command == "measure" else probe


@pytest.mark.parametrize("command", ["train", "measure", "probe", "report"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_result_that_can_not_be_written(
    command: str, earlier: bool, disk: Disk, tmp_path: Path, models: list[str]
) -> None:
    log = tmp_path / "log"
    if earlier:
        (disk.place / "out").mkdir()
        (disk.place / "out" / "kept").write_text("mine")
    disk.remount("ro")
    finish([*asked_for(command, tmp_path, models), "--out", str(disk.place / "out")], log, code=2)
    said = log.read_text().splitlines()
    assert len(said) == 1, log.read_text()
    assert said[0].startswith("error: ")
    assert "Read-only file system" in said[0] or "can't be written" in said[0] or earlier, said[0]
    assert not earlier or (disk.place / "out" / "kept").read_text() == "mine"


def test_a_run_and_a_cache_are_read(disk: Disk, tmp_path: Path, models: list[str]) -> None:
    log = tmp_path / "log"
    disk.resize(2**26)
    run, cache = disk.place / "run", disk.place / "cache"
    training = ["train", "tiny_scenes_entmax15", "--data", PICTURES, "--out", str(run)]
    finish([*training, *(part for one in tiny("length=6 steps") for part in ("--set", one))], log)
    probe = [*asked_for("probe", tmp_path, models), "--layers", "last", "--cache", str(cache)]
    probe += ["--set", "iterations=5", "--set", "points=16", "--seeds", "2"]
    finish([*probe, "--out", str(tmp_path / "first")], log)
    disk.remount("ro")
    finish([*probe, "--out", str(tmp_path / "second")], log)
    assert (tmp_path / "first" / "results.csv").read_bytes() == (tmp_path / "second" / "results.csv").read_bytes()
    finish(["measure", f"trained={run}", "--data", DATA, "--analyses", "pib", "--out", str(tmp_path / "run")], log)
    finish(["track", str(run), "--data", DATA, "--analyses", "pib", "--out", str(tmp_path / "track")], log)
