"""The whole probe on built-in pictures: command, table, cache, saved heads, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from diffusionlens import probe
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.errors import InputError
from diffusionlens.results import read_table

MODEL = "t=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
TEST, TRAIN = "test=scenes:?n=8&seed=1", "train=scenes:?n=12"
QUICK = ["iterations=6", "points=16"]


@pytest.mark.slow
def test_cached_tokens_and_saved_heads_give_the_same_numbers(tmp_path: Path) -> None:
    more = {"layers": "0,12", "seeds": 2, "cache": tmp_path / "cache"}
    first = probe("segmentation", MODEL, TEST, TRAIN, tmp_path / "one", save_heads=True, options=QUICK, **more)
    assert first is not None
    assert first.page is not None
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["backbone_forwards"] == 20
    rows = read_table(tmp_path / "one" / "results.csv")
    scores = rows[rows["metric"] == "miou"]
    assert sorted(set(scores["token"])) == sorted(KINDS)
    assert set(scores["layer"]) == {0, 12}
    assert (scores["n"] == 8).all()
    assert set(rows["analysis"]) == {"segmentation", "complementarity"}
    zero = scores[scores["layer"] == 0].set_index("token")["value"]
    assert zero["cls+patch"] == zero["shuffled_cls+patch"]  # CLS of layer 0 is the same vector for every picture
    second = probe("segmentation", MODEL, TEST, TRAIN, options=QUICK, **more)
    assert second is not None
    assert second.measurement.manifest["backbone_forwards"] == 0
    assert second.measurement.results.equals(first.measurement.results)
    heads = tmp_path / "one" / "heads" / "t.safetensors"
    third = probe("segmentation", MODEL, TEST, None, heads=heads, layers="0,12", cache=tmp_path / "cache")
    assert third is not None
    np.testing.assert_allclose(third.measurement.results["value"], first.measurement.results["value"])
    with pytest.raises(InputError, match="other weights or another size"):
        probe("segmentation", MODEL, TEST, None, heads=heads, size="32")


@pytest.mark.slow
def test_depth_and_classification(tmp_path: Path) -> None:
    depth = probe("depth", MODEL, TEST, TRAIN, layers="last", seeds=1, tokens="patch,cls+patch", options=QUICK)
    assert depth is not None
    rows = depth.measurement.results
    assert set(rows["metric"]) >= {"rmse", "rmse_pooled", "abs_rel", "delta1", "gain"}
    assert rows[rows["metric"] == "rmse"]["value"].between(0, 10).all()
    found = probe("classification", MODEL, TEST, TRAIN, layers="last", seeds=2, options=["iterations=5", "shots=1"])
    assert found is not None
    tokens = found.measurement.results.query("metric == 'knn_top1'")["token"]
    assert set(tokens) == {f"{kind} k={k}" for kind in KINDS for k in (10, 20, 100, 200)}
    assert any("neighbours beyond" in entry["what"] for entry in found.measurement.manifest["left_out"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "segmentaton"}, "did you mean 'segmentation'"),
        ({"tokens": "patches"}, "did you mean 'patch'"),
        ({"train": None}, "--train is missing"),
        ({"seeds": 0}, "--seeds 0"),
        (
            {"layers": "7", "models": [MODEL, "b=shipped:mini_softmax_seed0"]},
            "--layers 7: the model b has the layers 0",
        ),
        ({"options": ["iteration=5"]}, "did you mean 'iterations'"),
        ({"options": ["iterations=many"]}, "--set iterations="),
        ({"options": ["rates=0"]}, "--set rates="),
        ({"preset": "slow"}, "no --preset"),
        ({"heads": "nowhere", "train": None}, "does not exist"),
        ({"train": "scenes:?n=8&classes=4"}, "need the same"),
    ],
)
def test_requests_that_are_wrong(change: dict[str, object], message: str) -> None:
    asked = {"task": "segmentation", "models": MODEL, "data": TEST, "train": TRAIN, "layers": "last"} | change
    with pytest.raises(InputError, match=message) as error:
        probe(**asked)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_data_without_what_the_task_needs(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "x.png")
    with pytest.raises(InputError, match="has no masks, which segmentation needs"):
        probe("segmentation", MODEL, f"folder:{tmp_path}", f"folder:{tmp_path}")


def test_settings() -> None:
    recipe = recipe_for("depth", "fast", ["rates=1e-3, 3e-3", "clip=null", "max_depth=80"])
    assert recipe.rates == (1e-3, 3e-3)
    assert recipe.clip is None  # type: ignore[attr-defined]
    assert recipe.max_depth == 80  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="did you mean 'dinov2'"):
        recipe_for("depth", "dinov3", [])
