"""The same arguments give the same files in another process; batch size and workers change no number beyond rounding."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.faults.forked import finish
from tests.plans.tiny import DATA, TRAIN, write_models
from tests.result_directories import contents

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TESTED = "scenes:?n=12&seed=1&size=48&context=0.5"
ANALYSES = "pib,norms,sparsity,similarity,pca,diffusion,discovery"
MEASURE = ["measure", "--data", TESTED, "--size", "48", "--analyses", ANALYSES, "--set", "diffusion.folds=2"]
SMALL = ["--train", TRAIN, "--size", "32", "--seeds", "2", "--set", "iterations=20", "--layers", "0,2"]
PROBES = {
    "segmentation": ["probe", "segmentation", "--data", DATA, *SMALL, "--set", "points=64"],
    "depth": ["probe", "depth", "--data", DATA, *SMALL, "--set", "points=64"],
    "classification": ["probe", "classification", "--data", DATA, *SMALL],
}
ALL = {"measure": MEASURE, **PROBES}


def run(asked: list[str], model: str, out: Path) -> Path:
    finish([*asked, model, "--out", str(out)], out.with_suffix(".log"))
    return out


def run_afresh(asked: list[str], model: str, out: Path) -> Path:
    """In an interpreter that hashes in another way than any other."""
    command = [sys.executable, "-m", "diffusionlens", *asked, model, "--out", str(out)]
    changed = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=changed, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("command", list(ALL))
def test_another_process_writes_the_same_bytes(command: str, tmp_path: Path) -> None:
    """Also the figures, tables and page; sets and dictionaries have another order there."""
    model = write_models(tmp_path)[0]
    first, second = (contents(how(ALL[command], model, tmp_path / how.__name__)) for how in (run, run_afresh))
    assert first["results.csv"] == second["results.csv"]
    differing = [name for name in first if first[name] != second.get(name)]
    assert not differing
    assert list(first) == list(second)


@pytest.mark.parametrize("command", ["segmentation", "classification"])
def test_batches_and_workers_change_no_score_of_a_probe(command: str, tmp_path: Path) -> None:
    """Beyond 1e-5 of its size. A picture in another batch has other last bits, which training carries on."""
    model = write_models(tmp_path)[0]
    frames = [
        pd.read_csv(run([*ALL[command], *more], model, tmp_path / str(place)) / "results.csv")
        for place, more in enumerate(([], ["--batch-size", "3", "--workers", "2"]))
    ]
    assert len(frames[0]) > 10
    pd.testing.assert_frame_equal(frames[0].drop(columns="value"), frames[1].drop(columns="value"), rtol=1e-5)
    np.testing.assert_allclose(frames[0]["value"], frames[1]["value"], rtol=1e-5)


@pytest.mark.parametrize(("size", "tokens"), [(512, 1025), (768, 2305)])
def test_many_tokens(size: int, tokens: int, tmp_path: Path) -> None:
    asked = ["measure", "--data", "scenes:?n=2&size=256", "--size", str(size), "--layers", "0,2", "--analyses"]
    asked += ["pib,norms,sparsity,similarity,pca,discovery", "--batch-size", "1"]
    model = "timm:vit_tiny_patch16_224?pretrained=false&img_size=224"
    frame = pd.read_csv(run(asked, model, tmp_path / "out") / "results.csv")
    support = frame[(frame["metric"] == "support") & (frame["token"] == "patch>all")]
    assert (support["value"] == tokens).all()
    entropy = frame[frame["metric"] == "entropy_normalized"]["value"]
    assert len(entropy)
    assert entropy.between(0.5, 1).all()
    assert frame["value"].notna().all()
