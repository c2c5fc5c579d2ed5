"""What a probe says beside its numbers: pictures seen before, rates at the edge, what it was made of; and what it says early."""

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffusionlens import open_data, probe
from diffusionlens.analysis.probes.outcomes.outcome import rates_chosen
from diffusionlens.analysis.probes.outcomes.overlap import pictures_in_both
from diffusionlens.cli import main
from diffusionlens.errors import InputError
from diffusionlens.pages.findings import findings
from diffusionlens.pages.probe_remarks import probe_remarks
from diffusionlens.results import Row, to_frame
from tests.analysis.probes.heads.test_held_out_parts import ade, nyu

MODEL = "t=shipped:mini_untrained_seed0"
TEST, TRAIN = "test=scenes:?n=4&seed=1&size=64", "train=scenes:?n=6&size=64"


@pytest.mark.parametrize(
    ("test", "train", "both"),
    [
        (TEST, TEST, 4),
        (TEST, TEST.replace("test=", "train="), 4),
        (TEST, "scenes:?n=4&seed=1&size=48", 0),  # of the same names
        (TEST, TRAIN, 0),
    ],
)
def test_pictures_in_both_sets_of_scenes(test: str, train: str, both: int) -> None:
    assert pictures_in_both(open_data(test), open_data(train)) == both


def test_pictures_in_both_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (6, 16, 16, 3), dtype=np.uint8)

    def folder(name: str, numbers: dict[int, int]) -> str:
        (tmp_path / name).mkdir()
        for called, number in numbers.items():
            Image.fromarray(pixels[number]).save(tmp_path / name / f"{called}.png")
        return f"folder:{tmp_path / name}"

    test = open_data(folder("test", {0: 0, 1: 1, 2: 2}))
    assert pictures_in_both(test, None) == 0
    assert pictures_in_both(test, open_data(folder("some", {1: 1, 2: 2, 4: 4}))) == 2
    assert pictures_in_both(test, open_data(folder("others", {0: 3, 1: 4, 2: 5}))) == 0
    assert pictures_in_both(test, open_data(folder("apart", {3: 3, 4: 4}))) == 0
    broken = folder("broken", {0: 0, 1: 1})
    (tmp_path / "broken" / "0.png").write_bytes(b"x")
    assert pictures_in_both(test, open_data(broken)) == 2  # by the one that can be read
    (tmp_path / "broken" / "1.png").write_bytes(b"x")
    assert pictures_in_both(test, open_data(broken)) == 0


def test_the_chosen_rates_are_counted() -> None:
    rates = {"0": {"patch": 0.01, "cls": 0.1}, "12": {"patch": 0.1, "cls": 0.001}}
    assert rates_chosen(rates, (0.1, 0.001, 0.01)) == {
        "heads": 4, "highest": 2, "lowest": 1, "highest_rate": 0.1, "lowest_rate": 0.001,
    }  # fmt: skip
    assert rates_chosen(rates, (0.1,)) == rates_chosen({"0": {}}, (0.1, 0.01)) == {}


def manifest(both: int = 0, highest: int = 0, lowest: int = 0) -> dict[str, Any]:
    chosen = {"heads": 65, "highest": highest, "lowest": lowest, "highest_rate": 0.003, "lowest_rate": 0.0003}
    return {
        "models": [{"label": "m", "probe": {"rates_chosen": chosen}}, {"label": "other"}],
        "data": [{"label": "voc", "pictures": 40}],
        "pictures_in_both": both,
    }


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, []),
        ({"both": 3}, ["3 of the 40 pictures of voc are also among those that the heads learn from"]),
        (
            {"highest": 45},
            ["45 of 65 heads chose the highest of their learning rates (0.00300): higher ones may do better"],
        ),
        (
            {"lowest": 33},
            ["33 of 65 heads chose the lowest of their learning rates (0.000300): lower ones may do better"],
        ),
        ({"highest": 32, "lowest": 32}, []),
    ],
)
def test_remarks(values: dict[str, int], told: list[str]) -> None:
    found = probe_remarks(manifest(**values))
    assert len(found) == len(told)
    for finding, text in zip(found, told, strict=True):
        assert finding.warning == ("pictures of" in text)
        assert finding.model == (None if finding.warning else "m")
        assert all(part in finding.text for part in text.split(" (")[0].split(": ")), finding.text
        assert text.split(" (")[-1].split(")")[-1] in finding.text
    assert probe_remarks({"models": [{"label": "m"}], "data": []}) == []  # of another command


def gain(n: int, low: float | None, high: float | None) -> str:
    rows = [
        Row("segmentation", "miou", 30.0, 20, 12, token="patch", low=28.0, high=32.0),
        Row("complementarity", "gain", 4.0, n, 12, token="cls+patch", low=low, high=high),
        Row("complementarity", "gain_pictures", 4.0, 20, 12, token="cls+patch", low=2.0, high=6.0),
    ]
    return " ".join(finding.text for finding in findings(to_frame(rows, "m", "d"), ["m"], []))


def test_one_training_has_no_interval() -> None:
    text = gain(1, None, None)
    assert "one training, which gives no interval" in text
    assert "1 trainings" not in text
    assert "can't be told (--seeds)" in text
    assert "interval over 3 trainings" in gain(3, 3.0, 5.0)


def test_a_page_says_what_the_heads_were_made_of(tmp_path: Path) -> None:
    """Training data with a damaged picture, learned and scored; two rates, of which one must be chosen by most of three heads."""
    data = ade(tmp_path / "set", [1, 2, None, 1, 2, 1])
    test, train = data.replace("set=", "here="), data.replace("set=", "there=")
    out = tmp_path / "out"
    done = probe(
        "segmentation", MODEL, test, train, out, layers="last", seeds=1, tokens="patch,cls,cls+patch",
        options=["iterations=8", "points=16", "rates=1e-3,1e-2"],
    )  # fmt: skip
    assert done is not None
    page, written = html.unescape((out / "index.html").read_text()), json.loads((out / "manifest.json").read_text())
    assert [(one["role"], one["label"], one["measured"]) for one in written["data"]] == [
        ("test", "here", 5),
        ("train", "there", 5),
    ]
    assert "Training data: there" in page
    assert "6 found, 6 chosen, 5 used" in page
    assert data.partition("=")[2] in page
    assert "training picture: cut short or damaged" in page
    assert written["pictures_in_both"] == 6
    assert "6 of the 6 pictures of here are also among those that the heads learn from" in page
    chosen = written["models"][0]["probe"]["learning_rates"]["6"]
    assert "learning rates of layer 6" in page
    assert ", ".join(f"{kind} {rate:g}" for kind, rate in chosen.items()) in page
    counts = written["models"][0]["probe"]["rates_chosen"]
    assert counts["heads"] == counts["highest"] + counts["lowest"] == 3
    edge = max(("highest", "lowest"), key=lambda name: counts[name])
    assert f"{counts[edge]} of 3 heads chose the {edge} of their learning rates" in page
    assert all(finding.text in page for finding in done.findings if finding.warning)  # the command prints the same
    assert any(finding.text.startswith("6 of the 6 pictures") and finding.warning for finding in done.findings)
    assert "What CLS adds (1 training)" in page
    assert "1 trainings" not in page
    assert "The last two kinds are controls" not in page


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("nyuv2", {"crop_name": "eigen", "max_depth": 10.0}), ("kitti", {"crop_name": "garg", "max_depth": 80.0}),
     ("scenes", {"crop_name": "none", "max_depth": 10.0})],
)  # fmt: skip
def test_what_auto_came_to_is_written(
    kind: str, wanted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEST if kind == "scenes" else nyu(tmp_path / "set", [1000, 2000, 3000, 4000]).replace("nyuv2", kind)
    monkeypatch.setattr("diffusionlens.analysis.probes.tasks.depth.EIGEN_SIZE", (32, 32))
    monkeypatch.setattr("diffusionlens.analysis.probes.tasks.depth.EIGEN_CROP", (2, 30, 2, 30))
    options = ["iterations=2", "points=8", "bins=8"]
    done = probe("depth", MODEL, text, text, layers="last", seeds=1, tokens="patch", options=options)
    assert done is not None
    recipe = done.measurement.manifest["analyses"]["depth"]
    assert {key: recipe[key] for key in wanted} == wanted
    streamed = ["iterations=1", "batch_size=2", "warmup=0", "bins=8"] + (
        [] if kind == "kitti" else ["crop=32", "view=32"]
    )
    if kind == "kitti":
        return  # its pictures are cut at 352x1216
    done = probe("depth", MODEL, text, text, layers="last", seeds=1, tokens="patch", preset="dinov2", options=streamed)
    assert done is not None
    recipe = done.measurement.manifest["analyses"]["depth"]
    assert recipe["border"] == {"nyuv2": "nyu", "scenes": "none"}[kind]
    assert recipe["brightness"] == (0.75, 1.25)
    assert recipe["view"] == (32, 32)
    assert "auto" not in recipe.values()


@pytest.mark.parametrize("preset", ["fast", "dinov2"])
@pytest.mark.parametrize("several", [True, False])
def test_eigens_crop_of_other_sizes_is_refused_before_a_forward_pass(
    preset: str, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusionlens.analysis.probes.probe.capture", lambda *_, **__: pytest.fail("a forward pass"))
    small, usual = nyu(tmp_path / "small", [1000] * 3), TRAIN
    told = r"Eigen's crop is of depth maps of 480x640, and one here has 32x32; say --set crop_name=none"
    with pytest.raises(InputError, match=told):
        probe("depth", MODEL, small, usual, preset=preset)
    if several:  # those held out are scored, too
        with pytest.raises(InputError, match=told.replace("32x32", "64x64")):
            probe("depth", MODEL, TEST, usual, preset=preset, options=["crop_name=eigen", "rates=1e-3,1e-2"])


@pytest.mark.parametrize("inside", ["", "kept"])
def test_a_cache_in_the_result_is_refused_at_once(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusionlens.api.probing.open_data", lambda _: pytest.fail("data opened"))
    with pytest.raises(InputError, match=r"--cache .* is in --out .*, which is replaced as a whole; choose another"):
        probe("segmentation", MODEL, TEST, TRAIN, tmp_path / "x", cache=tmp_path / "x" / inside)
    monkeypatch.undo()
    options = ["iterations=2", "points=8"]
    done = probe(
        "segmentation", MODEL, TEST, TRAIN, cache=tmp_path / "y", layers="last", tokens="patch", options=options
    )
    assert done is not None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("iterations=2 points=8", "10 pictures through a model"),
        # 4 crops, a window of each of 4 pictures, and one again for the first picture's other CLS
        (
            "iterations=2 batch_size=2 warmup=0 crop=32 window=32 stride=32",
            "9 pictures, crops or views through a model",
        ),
    ],
    ids=["fast", "dinov2"],
)
def test_the_command_says_what_it_counts(
    options: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("diffusionlens.api.probing.write_bundle", lambda *_: tmp_path / "index.html")
    line = f"diffusionlens probe segmentation {MODEL} --data {TEST} --train {TRAIN} --out out --seeds 1".split()
    line += ["--layers", "last", "--tokens", "patch", "--preset", "dinov2" if "crop" in options else "fast"]
    monkeypatch.setattr("sys.argv", [*line, *(word for option in options.split() for word in ("--set", option))])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert told in capsys.readouterr().out
