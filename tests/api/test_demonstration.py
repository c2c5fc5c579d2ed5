"""The demo, shrunk to a moment: what it leaves, that it goes on where it was interrupted, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from diffusionlens.api import demonstration
from diffusionlens.cli import main
from diffusionlens.errors import InputError
from diffusionlens.results import read_table

SETTINGS = [
    "length=2 steps", "batch_size=8", "optimizer.warmup=0 steps", "optimizer.freeze_last_layer=0 steps",
    "checkpoint.every=1 steps",
    "model.options={patch_size: 8, embed_dim: 32, depth: 2, num_heads: 2}",
]  # fmt: skip


@pytest.mark.slow
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demonstration, "TRAINING_DATA", "train=scenes:?n=16&size=64")
    out = tmp_path / "demo"
    with pytest.raises(InputError, match=r"training of the softmax model failed: .*learning"):
        demonstration.demo(out, settings=["optimizer.learning=1"])
    shown = demonstration.demo(out, settings=SETTINGS, images=4)
    assert "entmax15: step 2/2" in capfd.readouterr().err
    table = read_table(out / "measure" / "results.csv")
    assert list(table["model"].unique()) == ["softmax-untrained", "softmax", "entmax15-untrained", "entmax15"]
    zeros = table[(table["metric"] == "zero_share") & (table["token"] == "patch>all") & (table["head"] == "mean")]
    by_model = zeros.groupby("model")["value"].mean()
    assert by_model["entmax15"] > 0.1  # really trained with another attention
    assert by_model["softmax"] == 0
    manifest = json.loads((out / "measure" / "manifest.json").read_text(encoding="utf-8"))
    assert [model["untrained"] for model in manifest["models"]] == [True, False, True, False]
    curves = read_table(out / "track" / "results.csv")
    assert list(curves["model"].unique()) == [
        f"{run}@{name}" for run in ("softmax", "entmax15") for name in ("epoch=0", "step=1", "epoch=1")
    ]

    before = (out / "runs" / "softmax" / "teacher" / "last.safetensors").read_bytes()
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "demo", "--out", str(out), "--json"])
    monkeypatch.setattr(demonstration, "measure", lambda *_, **__: shown.measured)  # once is enough
    monkeypatch.setattr(demonstration, "track", lambda *_, **__: shown.tracked)
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    printed = json.loads(capfd.readouterr().out)
    assert Path(printed["page"]).is_file()
    assert Path(printed["track"]).is_file()
    assert printed["page"] != printed["track"]
    assert (out / "runs" / "softmax" / "teacher" / "last.safetensors").read_bytes() == before


def test_demo_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    for out, message in (
        (tmp_path, "holds letter.txt"),
        (tmp_path / "letter.txt", "is a file"),
        (Path("/proc/x"), "can't be made"),
    ):
        with pytest.raises(InputError, match=message):
            demonstration.demo(out)
