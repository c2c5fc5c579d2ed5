"""`diffusionlens train`: exit statuses, one clear line, results on standard output."""

import json
import sys
from pathlib import Path

import pytest

from diffusionlens.cli import main
from tests.training.tiny import DATA, tiny


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "train", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_train_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    settings = [flag for setting in tiny("length=2 steps") for flag in ("--set", setting)]
    common = ["tiny_scenes_softmax", "--data", DATA, "--out", out, *settings]
    assert run(monkeypatch, *common, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"run": out, "status": "complete", "step": 2, "total": 2}
    # The batch of all ranks together, and the rate scaled to it: 2e-3 * 16 / 64.
    assert "2 steps an epoch, 2 steps, batch 16 (1 x 16), peak learning rate 5.00e-04" in printed.err
    assert run(monkeypatch, *common) == 2
    assert "continue it with --resume" in capsys.readouterr().err
    assert run(monkeypatch, f"{out}/recipe.yaml", "--data", DATA, "--out", out, "--resume") == 0  # nothing left to do
    assert capsys.readouterr().out == f"run: {out}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny_scenes_sofmax", "--data", DATA, "--out", "o"], "did you mean 'tiny_scenes_softmax'?"),
        (["tiny_scenes_softmax", "--data", "skenes:", "--out", "o"], "did you mean scenes:?"),
        (["tiny_scenes_softmax", "--data", DATA, "--out", "o", "--set", "lr=1"], "did you mean optimizer.lr?"),
        (["tiny_scenes_softmax", "--data", DATA, "--out", "o", "--overlay", "bosted"], "did you mean 'boosted'?"),
        (["boosted", "--data", DATA, "--out", "o"], "extend a whole recipe"),
        (["tiny_scenes_softmax", "--data", DATA, "--out", "o", "--resume"], "does not exist"),
        (["tiny_scenes_softmax", "--data", DATA], "--out"),
        (["tiny_scenes_softmax", "--data", "scenes:?n=640", "--out", "/proc/nowhere/o"], "/proc"),
    ],
)
def test_wrong_requests_exit_with_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []
