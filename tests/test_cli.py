"""The command: exit statuses, one clear line, results on standard output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "200"}
    command = [sys.executable, "-m", "diffusionlens", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment, check=False)


@pytest.mark.slow
def test_measure_and_its_output(tmp_path: Path) -> None:
    arguments = ["measure", MODEL, "--data", "scenes:?n=4", "--layers", "last"]
    done = run(*arguments, "--out", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"page: {tmp_path / 'one' / 'index.html'}"
    assert "a: 4/4 pictures" in done.stderr
    again = run(*arguments, "--out", str(tmp_path / "two"), "--json")
    assert json.loads(again.stdout)["models"] == ["a"]
    assert (tmp_path / "one" / "results.csv").read_bytes() == (tmp_path / "two" / "results.csv").read_bytes()


@pytest.mark.slow
def test_check(tmp_path: Path) -> None:
    done = run("check", MODEL, "--data", "scenes:?n=4&objects=3")
    assert done.returncode == 0, done.stderr
    assert "4 x 4 patches of 16 x 16 px" in done.stdout
    assert "4 found, 4 opened, 0 unreadable" in done.stdout
    found = json.loads(run("check", MODEL, "--json").stdout)
    assert found["models"][0]["depth"] == 12
    assert found["data"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "timm:vit_smal_patch16_224", "--data", "scenes:", "--out", "o"],
        ["measure", MODEL, "--data", "vok:x", "--out", "o"],
        ["measure", MODEL, "--data", "voc:/nowhere", "--out", "o"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--size", "65"],
        ["measure", MODEL, "--data", "scenes:?n=2"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--images", "x"],
        ["check", "missing.pth"],
        ["nonsense"],
        ["check", "--data", "scenes:"],
    ],
)
def test_wrong_requests_exit_with_2(arguments: list[str], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.strip()
    assert list(tmp_path.iterdir()) == []
