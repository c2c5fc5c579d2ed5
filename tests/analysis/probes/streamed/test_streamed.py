"""DINOv2's protocol from end to end on a few built-in pictures; several processes give the table of one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionlens import probe
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.errors import InputError
from diffusionlens.results import read_table

MODEL = "t=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
TEST, TRAIN = "test=scenes:?n=5&seed=1", "train=scenes:?n=8"
SEGMENTATION = ["iterations=3", "batch_size=4", "crop=50", "window=50", "stride=33", "warmup=1"]
DEPTH = ["iterations=2", "batch_size=4", "crop=40x60", "view=50", "warmup=1"]
FAST = ["iterations=6", "points=16"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the processes of torchrun, so that sums have their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_the_whole_protocol_of_segmentation(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = probe(
        "segmentation", MODEL, TEST, TRAIN, out, preset="dinov2", layers="0,12", seeds=2, save_heads=True,
        options=[*SEGMENTATION, "rates=1e-3,1e-2"],
    )  # fmt: skip
    assert first is not None
    manifest = json.loads((out / "manifest.json").read_text())
    # two trainings of 3 steps; pictures of 64 pixels at 50 are one window each: 1 held out (its partner is itself), 5 scored and
    # one of them twice, for the first picture's other CLS
    assert manifest["models"][0]["probe"]["forwards"] == {"learned": 24, "held out": 1, "scored": 6}
    assert manifest["backbone_forwards"] == 31
    assert manifest["analyses"]["segmentation"]["preset"] == "dinov2"
    assert [entry["measured"] for entry in manifest["data"]] == [5, 8]
    rows = read_table(out / "results.csv")
    scores = rows[rows["metric"] == "miou"]
    assert sorted(set(scores["token"])) == sorted(KINDS)
    assert (scores["n"] == 5).all()
    zero = scores[scores["layer"] == 0].set_index("token")["value"]
    assert zero["cls+patch"] == zero["shuffled_cls+patch"]  # CLS of layer 0 is the same for every picture
    assert (out / "figures" / "segmentation_pictures.png").is_file()
    page = (out / "index.html").read_text()
    assert "dinov2" in page
    assert "What CLS adds (2 trainings)" in page
    heads = out / "heads" / "t.safetensors"
    again = probe(
        "segmentation", MODEL, TEST, None, preset="dinov2", heads=heads, layers="0,12", options=SEGMENTATION[3:5]
    )
    assert again is not None
    np.testing.assert_allclose(again.measurement.results["value"], first.measurement.results["value"])


@pytest.mark.slow
def test_the_whole_protocol_of_depth(tmp_path: Path) -> None:
    found = {}
    for points in ("whole_map=true", "whole_map=false"):
        done = probe(
            "depth", MODEL, TEST, TRAIN, tmp_path / "out", preset="dinov2", layers="last", seeds=1, tokens="patch,cls+patch",
            options=[*DEPTH, points],
        )  # fmt: skip
        assert done is not None
        assert done.measurement.manifest["backbone_forwards"] == 8 + 2 * 6  # the picture and its mirror image
        rows = done.measurement.results
        assert set(rows["metric"]) >= {"rmse", "rmse_pooled", "abs_rel", "delta1", "gain"}
        found[points] = rows[rows["metric"] == "rmse"]["value"].to_numpy()
        assert ((found[points] > 0) & (found[points] < 10)).all()
    # random points are an estimate of the same loss; after two steps the heads are nearly the same
    np.testing.assert_allclose(found["whole_map=true"], found["whole_map=false"], rtol=0.1)
    assert (tmp_path / "out" / "figures" / "depth_pictures.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "options"), [("fast", FAST), ("dinov2", SEGMENTATION)])
def test_two_processes_give_the_table_of_one(preset: str, options: list[str], tmp_path: Path, one_thread: None) -> None:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "diffusionlens"]
    line += [
        "probe",
        "segmentation",
        MODEL,
        "--data",
        TEST,
        "--train",
        TRAIN,
        "--out",
        str(tmp_path / "two"),
        "--seeds",
        "2",
    ]
    line += ["--preset", preset, "--layers", "0,6,12", "--device", "cpu"]
    line += [word for option in options for word in ("--set", option)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    probe(
        "segmentation", MODEL, TEST, TRAIN, tmp_path / "one", seeds=2, preset=preset, layers="0,6,12", device="cpu",
        options=options,
    )  # fmt: skip
    one, two = (read_table(tmp_path / name / "results.csv") for name in ("one", "two"))
    columns = ["analysis", "metric", "layer", "token", "n"]
    assert one[columns].equals(two[columns])
    np.testing.assert_allclose(two["value"], one["value"], rtol=1e-5, atol=1e-5)
    assert json.loads((tmp_path / "two" / "manifest.json").read_text())["processes"] == 2
    assert (tmp_path / "two" / "figures" / "segmentation_pictures.png").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": "somewhere"}, "--cache goes with --preset fast"),
        ({"size": "64"}, "--size goes with --preset fast"),
        ({"options": ["stride=600"]}, "would leave pixels out"),
        ({"options": ["ratio=2,1"]}, "the smaller one first"),
        ({"options": ["crop=0"]}, "--set crop=0"),
        ({"options": ["crop=12y5"]}, "--set crop=12y5"),
        ({"options": ["border=kb"]}, "no setting of segmentation"),
        ({"task": "depth", "options": ["border=kp"]}, "--set border=kp"),
        ({"task": "depth", "options": ["crop=40x60x2"]}, "--set crop=40x60x2"),
    ],
)
def test_requests_that_are_wrong(change: dict[str, object], message: str) -> None:
    asked = {"task": "segmentation", "models": MODEL, "data": TEST, "train": TRAIN, "preset": "dinov2"} | change
    with pytest.raises(InputError, match=message) as error:
        probe(**asked)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
