"""The command: exit statuses, one clear line, results on standard output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffusionlens.cli import main

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.slow
def test_measure_as_a_program(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "diffusionlens", "measure", MODEL, "--data", "scenes:?n=4", "--layers", "last"]
    command += ["--analyses", "norms", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"page: {out / 'index.html'}"
    assert "a: 4/4 pictures" in done.stderr


@pytest.mark.slow
def test_the_same_arguments_give_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("diffusionlens.report.bundle.draw_figures", lambda *_: [])
    tables = []
    for name in ("one", "two"):
        arguments = ["measure", MODEL, "--data", "scenes:?n=6&objects=2", "--out", str(tmp_path / name), "--json"]
        assert run(monkeypatch, *arguments) == 0
        assert json.loads(capsys.readouterr().out)["models"] == ["a"]
        tables.append((tmp_path / name / "results.csv").read_bytes())
    assert tables[0] == tables[1]


def test_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "check", MODEL, "--data", "scenes:?n=4&objects=3") == 0
    printed = capsys.readouterr().out
    assert "4 x 4 patches of 16 x 16 px" in printed
    assert "4 found, 4 opened, 0 unreadable" in printed
    assert run(monkeypatch, "check", MODEL, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"][0]["depth"] == 12
    assert found["data"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "timm:vit_smal_patch16_224", "--data", "scenes:", "--out", "o"],
        ["measure", MODEL, "--data", "vok:x", "--out", "o"],
        ["measure", MODEL, "--data", "voc:/nowhere", "--out", "o"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--size", "65"],
        ["measure", MODEL, "--data", "scenes:?n=2"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--images", "x"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "/proc/nowhere/o"],
        ["check", "missing.pth"],
        ["nonsense"],
        ["check", "--data", "scenes:"],
    ],
)
def test_wrong_requests_exit_with_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err.strip()
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("diffusionlens.api.check", broken)
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "check", MODEL])
    with pytest.raises(ZeroDivisionError):  # Python prints the traceback and exits with 1
        main()
