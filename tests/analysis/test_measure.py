"""The whole measurement: batches, processes and models change nothing; what is lacking is named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from diffusionlens import load_model, measure
from diffusionlens.analysis.measure import chosen_pictures, parse_layers
from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.errors import InputError
from diffusionlens.results import read_table

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
DATA = "scenes:?n=20&size=64&objects=2"


def values(frame: pd.DataFrame) -> pd.Series:
    return frame.set_index(["model", "analysis", "metric", "layer", "head", "token"])["value"]


def results(**options: object) -> pd.DataFrame:
    measured = measure(MODEL, DATA, **({"options": ["pib.boxes=any"]} | options))  # type: ignore[arg-type]
    assert measured is not None
    return measured.measurement.results


def test_batch_size_and_workers_change_nothing() -> None:
    plain = values(results())
    for options in ({"batch_size": 1}, {"batch_size": 7}, {"workers": 1}):
        other = values(results(**options))
        assert other.index.equals(plain.index)
        np.testing.assert_allclose(other.to_numpy(), plain.to_numpy(), rtol=1e-5, atol=2e-5, err_msg=str(options))


def test_one_analysis_alone_gives_the_same_numbers() -> None:
    plain = values(results())
    for name in ("pib", "norms", "similarity", "pca"):  # without attention the fused kernel runs: rounding differs
        alone = values(results(analyses=name))
        np.testing.assert_allclose(alone.to_numpy(), plain[alone.index].to_numpy(), rtol=2e-4, atol=2e-4)


def test_a_model_is_measured_alike_alone_and_beside_another() -> None:
    both = measure(
        [MODEL, "b=timm:vit_tiny_patch16_224?pretrained=false&img_size=96"], DATA, layers="last", analyses="pib,norms"
    )
    assert both is not None
    frame = both.measurement.results
    pd.testing.assert_frame_equal(
        frame[frame["model"] == "a"].reset_index(drop=True),
        measure(MODEL, DATA, layers="last", analyses="pib,norms").measurement.results,  # type: ignore[union-attr]
    )
    assert set(frame["model"]) == {"a", "b"}


def test_every_row_has_a_count_and_finite_numbers() -> None:
    frame = results()
    assert (frame["n"] > 0).all()
    assert np.isfinite(frame["value"]).all()
    bounded = frame.dropna(subset=["low", "high"])
    assert (bounded["low"] <= bounded["value"] + 1e-6).all()
    assert (bounded["value"] <= bounded["high"] + 1e-6).all()
    assert not frame.duplicated(["analysis", "metric", "layer", "head", "token"]).any()
    assert set(frame["analysis"]) == {"pib", "norms", "sparsity", "similarity", "pca"}


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(tmp_path: Path) -> None:
    command = ["--data", DATA, "--device", "cpu", "--set", "pib.boxes=any"]
    single = [sys.executable, "-m", "diffusionlens", "measure", MODEL, *command, "--out", str(tmp_path / "one")]
    double = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "diffusionlens",
    ]
    double += ["measure", MODEL, *command, "--out", str(tmp_path / "two")]
    for line in (single, double):
        done = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (read_table(tmp_path / name / "results.csv") for name in ("one", "two"))
    assert values(one).index.equals(values(two).index)
    np.testing.assert_allclose(values(two).to_numpy(), values(one).to_numpy(), rtol=2e-5, atol=2e-5)
    names = [set(pd.read_csv(tmp_path / name / "per_image.csv.gz")["name"]) for name in ("one", "two")]
    assert names[0] == names[1]
    assert json.loads((tmp_path / "two" / "manifest.json").read_text())["processes"] == 2


def test_unreadable_pictures_are_skipped_and_named(tmp_path: Path) -> None:
    for place in range(5):
        Image.fromarray(np.random.default_rng(place).integers(0, 255, (70, 80, 3), dtype=np.uint8)).save(
            tmp_path / f"{place}.png"
        )
    (tmp_path / "2.png").write_bytes(b"broken")
    measured = measure(MODEL, f"folder:{tmp_path}", layers="last")
    assert measured is not None
    data = measured.measurement.manifest["data"][0]
    assert (data["pictures"], data["measured"]) == (5, 4)
    assert [Path(entry["file"]).name for entry in data["skipped"]] == ["2.png"]
    left = {entry["what"]: entry["reason"] for entry in measured.measurement.manifest["left_out"]}
    assert left["pib"] == "the data has no boxes"
    assert "srss" in " ".join(left)
    assert "pib" not in set(measured.measurement.results["analysis"])


def test_only_unreadable_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(InputError, match="nothing could be measured"):
        measure(MODEL, f"folder:{tmp_path}")


def test_a_model_without_cls() -> None:
    measured = measure(
        "timm:vit_medium_patch16_reg4_gap_256?pretrained=false&img_size=64", DATA, layers="last", images=4
    )
    assert measured is not None
    frame = measured.measurement.results
    assert set(frame[frame["metric"] == "pib"]["token"]) <= {"mean_patch"}
    assert "register_norm" in set(frame["metric"])
    assert not frame["token"].str.startswith("cls").any()
    assert any("CLS" in entry["reason"] for entry in measured.measurement.manifest["left_out"])


def test_attention_that_cannot_be_seen_is_left_out_by_name() -> None:
    backbone = load_model(MODEL)
    for block in backbone.blocks:
        block.attn.fused_attn = False
    measured = measure(backbone, DATA, images=3, layers="last")
    assert measured is not None
    left = {entry["what"]: entry["reason"] for entry in measured.measurement.manifest["left_out"]}
    assert "scaled_dot_product_attention" in left["sparsity"]
    assert "norms" in set(measured.measurement.results["analysis"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "13"}, "--layers 13: the model a has the layers 0 (embedding) to 12"),
        ({"layers": "a"}, "wanted all, last, or numbers"),
        ({"images": 0}, "wanted a whole number from 1"),
        ({"size": "65"}, "65 is not a multiple of its patch size 16; use 64 or 80"),
        ({"fit": "stretch"}, "wanted crop, squash or pad"),
        ({"batch_size": 0}, "wanted a whole number from 1"),
        ({"device": "tpu9"}, "can't be used"),
        ({"seed": 2**32}, "wanted a whole number from 0 to 4294967295"),
        ({"workers": 5000}, "wanted a whole number from 0 to"),
        ({"options": ["pib.hit=center", "pib.hit=any"]}, "pib.hit is given twice"),
        ({"options": ["norms.fixed=2020-13-45"]}, "is not a plain value"),
        ({"options": ["norms.fixed=.inf"]}, "is not a plain value"),
        ({"analyses": "pbi"}, "did you mean 'pib'"),
        ({"analyses": ""}, "no analysis was named"),
        ({"options": ["pib.hit=middle"]}, "pib.hit=middle"),
        ({"options": ["pib.hits=center"]}, "did you mean 'hit'"),
        ({"options": ["hit"]}, "wanted ANALYSIS.KEY=VALUE"),
        ({"options": ["norms.fixed=-1"]}, "--set norms.fixed=-1; wanted a number above 0"),
        ({"analyses": "pib", "options": ["pib.query=cls_final"], "layers": "0"}, "nothing could be measured"),
    ],
)
def test_wrong_requests(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        measure(MODEL, DATA, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_last_model_lacks_is_known_before_the_first_is_measured() -> None:
    def measuring(*_: object) -> None:
        raise AssertionError("a picture was measured")

    small = "b=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
    for options, message in (
        ({"layers": "0,12,30"}, "the model a has the layers 0"),
        ({"size": "72"}, "not a multiple"),
        ({"analyses": "pib", "layers": "0", "options": ["pib.query=cls_final"]}, "cls_final needs the last layer"),
        ({"analyses": "sparsity", "layers": "0"}, "layer 0 has no attention"),
        ({"device": "meta"}, "can't be used"),
    ):
        with pytest.raises(InputError, match=message):
            measure([MODEL, small], DATA, progress=measuring, **options)  # type: ignore[arg-type]
    shallow = "d=shipped:mini_softmax_seed0"
    with pytest.raises(InputError, match=r"--layers 7: the model d has the layers 0 \(embedding\) to 6; stay between"):
        measure([MODEL, shallow], DATA, layers="7", progress=measuring)
    coarse = "c=timm:vit_small_patch32_224?pretrained=false&img_size=64"
    with pytest.raises(InputError, match="80 is not a multiple of its patch size 32"):
        measure([MODEL, coarse], DATA, size="80", progress=measuring)


def test_what_is_named_twice_is_measured_once() -> None:
    once = measure(MODEL, DATA, images=3, layers="0,12", analyses="norms,similarity")
    twice = measure(MODEL, DATA, images=3, layers="0,0,12,-1,-13", analyses="norms,norms,similarity,norms")
    assert once is not None
    assert twice is not None
    pd.testing.assert_frame_equal(once.measurement.results, twice.measurement.results)
    pd.testing.assert_frame_equal(once.measurement.per_image, twice.measurement.per_image)


def test_two_models_of_one_name() -> None:
    with pytest.raises(InputError, match="two models are called 'a'"):
        measure([MODEL, MODEL], DATA)


def test_choices() -> None:
    assert chosen_pictures(10, 4) == [0, 2, 5, 7]
    assert chosen_pictures(3, None) == [0, 1, 2]
    assert parse_layers("-1,0,3", 12, "a") == (0, 3, 12)
    assert parse_analyses("pca, pib") == ["pib", "pca"]
    assert parse_options(["pib.max_box_area=0.25"])["pib"].max_box_area == 0.25  # type: ignore[attr-defined]


def test_progress_says_what_is_done_before_the_first_batch_ends() -> None:
    said: list[tuple[str, int, int]] = []
    measure(MODEL, DATA, images=3, analyses="norms", batch_size=2, progress=lambda *one: said.append(one))
    assert said[0] == ("a: pictures at 64 x 64 px, 2 at a time", 0, 3)
    assert said[-1] == ("a: pictures at 64 x 64 px, 2 at a time", 3, 3)
    said.clear()
    large = "a=timm:vit_tiny_patch16_224?pretrained=false"
    measure(large, DATA, images=1, layers="0", analyses="norms", size="720", progress=lambda *one: said.append(one))
    assert said[0] == ("a: an empty picture of 720 x 720 px, to try the model", 0, 1)
