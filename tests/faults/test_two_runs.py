"""Two runs that want one directory, and reading processes that are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.faults.forked import finish, start
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.result_directories import contents
from tests.training.tiny import ROOT, largest_difference, tiny, weights

pytestmark = pytest.mark.slow


def until(process: BaseProcess, there: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert process.is_alive(), log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


def test_train(tmp_path: Path) -> None:
    out, logs = tmp_path / "out", [tmp_path / "log1", tmp_path / "log2"]
    asked = ["train", "tiny_scenes_entmax15", "--data", "scenes:?n=40&size=32"]
    for setting in tiny("length=60 steps"):
        asked += ["--set", setting]
    finish([*asked, "--out", str(tmp_path / "alone")], logs[0])
    first = start([*asked, "--out", str(out)], logs[0])
    until(first, (out / "log.jsonl").exists, logs[0])
    os.kill(int(first.pid or 0), signal.SIGSTOP)  # so that it is there for as long as the other looks
    for more in ([], ["--resume"]) if (out / "checkpoints" / "last.pt").exists() else ([],):
        finish([*asked, "--out", str(out), *more], logs[1], code=2)
        said = logs[1].read_text().splitlines()[-1]
        assert "another run is writing it" in said or "holds a run" in said
    os.kill(int(first.pid or 0), signal.SIGCONT)
    first.join()
    assert first.exitcode == 0, logs[0].read_text()
    assert largest_difference(weights(out), weights(tmp_path / "alone")) == 0


def test_report(tmp_path: Path) -> None:
    models = [part for model in write_models(tmp_path) for part in ("--model", model)]
    asked = ["report", str(write_plan(tmp_path)), *models, "--data", DATA, "--train", TRAIN, "--size", "32"]
    asked += ["--set", "similarity.differences=false", "--set", "heads.figures=[]", "--set", "gain.figures=[]", "--out"]
    logs = [tmp_path / "log1", tmp_path / "log2"]
    finish([*asked, str(tmp_path / "alone")], logs[0])
    first = start([*asked, str(tmp_path / "out")], logs[0])
    until(first, (tmp_path / ".out.parts" / ".lock").exists, logs[0])
    os.kill(int(first.pid or 0), signal.SIGSTOP)
    for more in ([], ["--no-resume"]):
        finish([*asked, str(tmp_path / "out"), *more], logs[1], code=2)
        assert "another report is writing" in logs[1].read_text().splitlines()[-1]
    os.kill(int(first.pid or 0), signal.SIGCONT)
    first.join()
    assert first.exitcode == 0, logs[0].read_text()
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_measure(tmp_path: Path) -> None:
    """Both end well; whoever is the last has its result there, whole."""
    model = write_models(tmp_path)[0]
    asked = ["measure", model, "--data", DATA, "--size", "32", "--analyses", "pib", "--out"]
    logs = [tmp_path / "log1", tmp_path / "log2"]
    finish([*asked, str(tmp_path / "alone")], logs[0])
    both = [start([*asked, str(tmp_path / "out")], log) for log in logs]
    for process, log in zip(both, logs, strict=True):
        process.join()
        assert process.exitcode == 0, log.read_text()
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("command", ["measure", "train"])
def test_a_reading_process_that_is_killed(command: str, tmp_path: Path) -> None:
    """As the system does when memory is short: one line that says so, and nothing half-written."""
    log, out = tmp_path / "log", tmp_path / "out"
    if command == "measure":
        asked = [
            "measure",
            write_models(tmp_path)[0],
            "--data",
            "scenes:?n=4000&size=64",
            "--size",
            "32",
            "--analyses",
            "pib",
        ]
        asked += ["--workers", "2", "--out", str(out)]
    else:
        asked = ["train", "tiny_scenes_entmax15", "--data", "scenes:?n=40&size=32", "--out", str(out)]
        for setting in tiny("length=20000 steps", "run.workers=2"):
            asked += ["--set", setting]
    with log.open("w") as said:
        process = subprocess.Popen([sys.executable, "-m", "diffusionlens", *asked], stdout=said, stderr=said, cwd=ROOT)
    deadline = time.monotonic() + 120
    while len(children(process.pid)) < 2:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    time.sleep(1)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    assert process.wait(120) in (1, 2), log.read_text()
    lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, log.read_text()
    assert "Traceback" not in log.read_text()
    assert "--workers" in lines[0] or "run.workers" in lines[0]
    assert command == "train" or not out.exists()
