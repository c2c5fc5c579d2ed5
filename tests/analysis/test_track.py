"""Curves over training: the same numbers as of each checkpoint alone, whether made while training or afterwards."""

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

import diffusionlens
from diffusionlens.analysis.track import Moment, find_moments, with_moments
from diffusionlens.cli import main
from diffusionlens.errors import InputError
from diffusionlens.figures.style import look
from diffusionlens.figures.trajectories import layers_by_epoch, metric_by_epoch
from diffusionlens.pages.track import track_findings
from diffusionlens.results import Row, read_table, to_frame
from tests.training.tiny import DATA, TINY, largest_difference, tiny, weights

HELD_OUT = "held=scenes:?n=6&seed=9&size=32"
CHOSEN = "pib,similarity"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run with diagnostics, one that was stopped in the middle and resumed, one without."""
    folder = tmp_path_factory.mktemp("runs")
    given = {"diagnose": HELD_OUT, "diagnose_analyses": CHOSEN}
    plain, watched, resumed = folder / "plain", folder / "watched", folder / "resumed"
    diffusionlens.train("tiny_scenes_entmax15", DATA, plain, settings=TINY)
    diffusionlens.train("tiny_scenes_entmax15", DATA, watched, settings=TINY, **given)

    diffusionlens.train("tiny_scenes_entmax15", DATA, resumed, settings=TINY, **given)
    for name in ("last.pt", "epoch_0003.pt"):  # as if it had been killed after the diagnostics, before the end
        (resumed / "checkpoints" / name).unlink()
    (resumed / "checkpoints" / "step_00000003.pt").rename(resumed / "checkpoints" / "last.pt")
    diffusionlens.train(str(resumed / "recipe.yaml"), DATA, resumed, resume=True, **given)
    return {"plain": plain, "watched": watched, "resumed": resumed}


def test_looking_on_changes_nothing(runs: dict[str, Path]) -> None:
    assert largest_difference(weights(runs["plain"]), weights(runs["watched"])) == 0


def test_diagnostics_are_those_of_track(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    tracked = diffusionlens.track(f"watched={runs['plain']}", HELD_OUT, out, analyses=CHOSEN)
    assert tracked is not None
    table = (out / "results.csv").read_bytes()
    assert (runs["watched"] / "diagnostics" / "results.csv").read_bytes() == table
    renamed = (runs["resumed"] / "diagnostics" / "results.csv").read_bytes()
    assert renamed.replace(b"resumed@", b"watched@") == table  # nothing twice, nothing left of the first try

    frame = read_table(out / "results.csv")
    names = ["watched@epoch=0", "watched@step=3", "watched@epoch=3"]
    assert list(frame["model"].unique()) == names
    alone = diffusionlens.measure(
        f"{names[2]}".split("@")[0] + f"={runs['plain']}/teacher/epoch_0003.safetensors", HELD_OUT, analyses=CHOSEN
    )
    assert alone is not None
    last = frame[frame["model"] == names[2]]
    assert len(last) == len(alone.measurement.results)
    assert last["value"].to_numpy() == pytest.approx(
        alone.measurement.results["value"].to_numpy(), rel=1e-5, nan_ok=True
    )

    page = (out / "index.html").read_text(encoding="utf-8")
    assert "over training" in page
    assert {path.stem for path in (out / "figures").glob("*.pdf")} == {"track_by_epoch", "track_by_layer"}
    assert {path.name for path in (out / "tables").iterdir()} == {"track.csv", "track.md", "track.tex"}
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["step"] for entry in manifest["checkpoints"]] == [0, 3, 6]
    assert len(manifest["models"]) == 3


def test_a_checkpoint_that_cannot_be_diagnosed_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = diffusionlens.train(
        "tiny_scenes_softmax", DATA, tmp_path / "run", settings=tiny("length=1 steps", "optimizer.warmup=0 steps",
        "optimizer.freeze_last_layer=0 steps"), diagnose="folder:" + str(pictures_without_boxes(tmp_path)),
        diagnose_analyses="pib",
    )  # fmt: skip
    assert done is not None
    assert done.status == "complete"
    assert "was not diagnosed" in capfd.readouterr().err


def pictures_without_boxes(folder: Path) -> Path:
    from PIL import Image

    (folder / "bare").mkdir()
    Image.new("RGB", (40, 40), "red").save(folder / "bare" / "a.png")
    return folder / "bare"


def test_layers_that_a_run_does_not_have_are_told_before_anything_is_measured(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    def measuring(*_: object) -> None:
        raise AssertionError("a checkpoint was measured")

    with pytest.raises(InputError, match=r"--layers 9: the model b@epoch=0 has the layers 0"):
        diffusionlens.track(f"b={runs['plain']}", HELD_OUT, tmp_path / "o", layers="9", progress=measuring)


def test_moments(runs: dict[str, Path], tmp_path: Path) -> None:
    moments = find_moments([f"a={runs['plain']}", f"b={runs['plain']}"], 2)
    assert [(moment.label, moment.step) for moment in moments] == [
        ("a@epoch=0", 0), ("a@epoch=3", 6), ("b@epoch=0", 0), ("b@epoch=3", 6)
    ]  # fmt: skip
    assert [moment.step for moment in find_moments([str(runs["plain"])], 1)] == [6]
    for given, count, message in (
        ([str(tmp_path)], None, "is not a training run"),
        ([str(tmp_path / "no")], None, "does not exist"),
        ([f"a={runs['plain']}", f"a={runs['plain']}"], None, "two runs are called 'a'"),
        ([], None, "no run"),
        ([str(runs["plain"])], 0, "--checkpoints 0"),
    ):
        with pytest.raises(InputError, match=message):
            find_moments(given, count)


def test_a_damaged_checkpoint_is_left_out_and_named(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(runs["plain"], run)
    middle = run / "teacher" / "step_00000003.safetensors"
    middle.write_bytes(middle.read_bytes()[:3000])
    given = ["track", f"r={run}", "--data", HELD_OUT, "--out", str(out), "--analyses", "pib"]
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *given, "--json"])
    main_exits(0)
    said = capsys.readouterr()
    line = f"r@step=3 is left out: {middle} is not a whole safetensors file"
    assert said.err.startswith(f"warning: {line}")  # before anything is measured
    printed = json.loads(said.out)
    assert printed["models"] == ["r@epoch=0", "r@epoch=3"]
    (left,) = printed["left_out"]
    assert (left["model"], left["what"]) == ("r@step=3", "the whole checkpoint")
    assert json.loads((out / "manifest.json").read_text())["left_out"] == [left]
    assert "<strong>r@step=3</strong>: the whole checkpoint" in (out / "index.html").read_text()
    alone = diffusionlens.track(f"r={runs['plain']}", HELD_OUT, tmp_path / "whole", analyses="pib", checkpoints=2)
    assert alone is not None  # the others' numbers are what they were
    assert (tmp_path / "whole" / "results.csv").read_bytes() == (out / "results.csv").read_bytes()

    for file in (run / "teacher").iterdir():
        file.write_bytes(b"")
    with pytest.raises(
        InputError, match=r"none of the checkpoints of r can be opened; the first: .*epoch_0000.* is empty"
    ):
        diffusionlens.track([f"r={run}", f"s={runs['plain']}"], HELD_OUT, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("analyses", "said"),
    [
        ("diffusion", ("Spread in layer 2 goes from",)),
        (
            "discovery",
            ("CorLoc of LOST in layer 2", "CorLoc of TokenCut in layer 2", "The Jaccard index of the best head"),
        ),
        ("norms", ("The share of outlier tokens (MAD) in layer 2",)),
    ],
)
def test_every_analysis_with_numbers_has_its_findings(
    analyses: str, said: tuple[str, ...], runs: dict[str, Path], tmp_path: Path
) -> None:
    data = "held=scenes:?n=16&seed=9&size=64&classes=2"
    tracked = diffusionlens.track(f"r={runs['plain']}", data, tmp_path / "out", analyses=analyses, checkpoints=2)
    assert tracked is not None
    texts = [finding.text for finding in tracked.findings]
    for part in said:
        assert any(part in text for text in texts), texts
    assert (tmp_path / "out" / "figures" / "track_by_epoch.png").is_file()
    if analyses == "diffusion":  # too few pictures of a label, and the page says so
        page = (tmp_path / "out" / "index.html").read_text()
        assert "r@epoch=3, diffusion: " in page
        assert "r@epoch=0, diffusion: " not in page  # once a run


def course(values: list[float], width: float, metric: str = "pib", analysis: str = "pib") -> pd.DataFrame:
    """A run with these values of a metric at the epochs 0, 1, ..., in layers 1 (always 50) and 2."""
    moments = [Moment("r", f"epoch={n}", float(n), 10 * n, Path()) for n in range(len(values))]
    parts = [
        to_frame(
            [
                Row(analysis, metric, 50.0, 99, layer=1, low=49.0, high=51.0),
                Row(analysis, metric, value, 99, layer=2, low=value - width, high=value + width),
            ],
            moment.label,
            "d",
        )
        for moment, value in zip(moments, values, strict=True)
    ]
    return with_moments(pd.concat(parts, ignore_index=True), moments)


@pytest.mark.parametrize(
    ("values", "width", "said", "unsaid"),
    [
        (
            [20, 60, 30],
            2.0,
            ["from 20.0 (18.0 to 22.0) % at epoch 0 to 30.0", "highest at epoch 1 with 60.0", "30.0 lost"],
            [],
        ),
        ([20, 60, 30], 40.0, ["can't be told apart"], ["highest", "lost"]),
        ([20, 30, 60], 2.0, ["to 60.0 (58.0 to 62.0) % at epoch 2"], ["highest", "lost", "can't"]),
        ([60, 20, 50], 2.0, ["lowest at epoch 1 with 20.0", "30.0 gained"], ["highest"]),
    ],
)
def test_findings_say_what_the_intervals_allow(
    values: list[float], width: float, said: list[str], unsaid: list[str]
) -> None:
    (found,) = track_findings(course(values, width), ["r"])
    for part in said:
        assert part in found.text
    for part in unsaid:
        assert part not in found.text


@pytest.mark.parametrize(("whole", "followed"), [(5.0, True), (90.0, False)])
def test_corloc_is_not_followed_where_boxes_are_the_whole_picture(whole: float, followed: bool) -> None:
    values = course([20, 60, 30], 2.0)
    parts = [
        values.assign(analysis="discovery", metric="corloc_lost"),
        values.assign(analysis="discovery", metric="lost_whole", value=values["epoch"].map({0: 1.0, 1: whole, 2: 1.0})),
    ]
    (found,) = track_findings(pd.concat(parts, ignore_index=True), ["r"])
    assert ("30.0 lost" in found.text) == followed
    assert (
        "is not followed: at epoch 1, LOST's box is the whole picture in 90.0 % of the pictures" in found.text
    ) != followed


def test_curves_are_the_numbers() -> None:
    results = course([20, 60, 30], 2.0)
    with look():
        figure = metric_by_epoch(results, ["r"])
        by_layer = layers_by_epoch(results, ["r"])
    assert figure is not None
    assert by_layer is not None
    (line,) = figure.axes[0].get_lines()
    assert line.get_xydata().tolist() == [[0, 20], [1, 60], [2, 30]]
    assert [line.get_ydata().tolist() for line in by_layer.axes[0].get_lines()] == [[50, 20], [50, 60], [50, 30]]


def test_command(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "track",
        f"r={runs['plain']}",
        "--data",
        HELD_OUT,
        "--out",
        str(tmp_path / "o"),
        "--analyses",
        "pib",
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *given])
    main_exits(0)
    printed = json.loads(capsys.readouterr().out)
    assert printed["models"] == ["r@epoch=0", "r@step=3", "r@epoch=3"]
    assert printed["findings"]
    monkeypatch.setattr(
        sys, "argv", ["diffusionlens", "track", str(tmp_path), "--data", HELD_OUT, "--out", str(tmp_path / "p")]
    )
    main_exits(2)
    assert "is not a training run" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def main_exits(status: int) -> None:
    with pytest.raises(SystemExit) as left:
        main()
    assert int(left.value.code or 0) == status
