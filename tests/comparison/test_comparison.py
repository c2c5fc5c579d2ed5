"""Differences picture by picture: against closed forms, SciPy's bootstrap, and planted effects."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import diffusionlens
from diffusionlens.cli import main
from diffusionlens.comparison.paired import paired_differences
from diffusionlens.errors import InputError
from diffusionlens.pages.comparison_findings import Shown, comparison_findings, difference_sentence
from diffusionlens.results import PER_IMAGE_COLUMNS, Row, to_frame, write_table

PICTURES = 200


def planted(shift: float, noise: float = 0.1, n: int = PICTURES) -> tuple[np.ndarray, np.ndarray]:
    """Two series that share what makes a picture hard (std 1), the second higher by `shift`."""
    rng = np.random.default_rng(5)
    shared = rng.normal(size=n)
    return shared + noise * rng.normal(size=n), shared + shift + noise * rng.normal(size=n)


def series(values: np.ndarray, model: str = "a", metric: str = "lds", start: int = 0) -> pd.DataFrame:
    names = [f"p{place + start:04d}" for place in range(len(values))]
    frame = pd.DataFrame({"name": names, "value": values})
    frame = frame.assign(model=model, data="d", analysis="similarity", metric=metric, layer=12, head="", token="")
    return frame[PER_IMAGE_COLUMNS].astype({"layer": "Int64"})


def write(folder: Path, model: str, values: np.ndarray, *, start: int = 0, **changes: object) -> Path:
    folder.mkdir(parents=True)
    row = Row("similarity", "lds", float(values.mean()), len(values), layer=12, low=-9.0, high=9.0)
    rank = Row("similarity", "effective_rank", 10.0 + values.mean(), 999, layer=12)
    write_table(to_frame([row, rank], model, "d"), folder / "results.csv")
    series(values, model, start=start).to_csv(folder / "per_image.csv.gz", index=False, lineterminator="\n")
    manifest = {
        "models": [{"label": model, "spec": model, "size": [224, 224], "sha256": None}],
        "data": [{"label": "d", "spec": changes.get("data", "voc:/a?split=val")}],
        "analyses": {"similarity": {"tokens": changes.get("tokens", "normed")}},
        "settings": {"fit": "crop"},
        "left_out": [],
        "versions": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_interval_is_that_of_the_normal_law_and_of_scipy() -> None:
    """To within 0.3 standard errors: the 2.5 % quantile of 1000 resamples has itself an error of 0.085."""
    first, second = planted(0.05)
    row = paired_differences(series(first), series(second), seed=0).iloc[0]
    change = second - first
    error = change.std(ddof=1) / np.sqrt(PICTURES)
    assert row["difference"] == pytest.approx(change.mean(), abs=1e-12)
    assert row["low"] == pytest.approx(change.mean() - 1.96 * error, abs=0.3 * error)
    assert row["high"] == pytest.approx(change.mean() + 1.96 * error, abs=0.3 * error)
    theirs = stats.bootstrap(
        (second, first),
        lambda b, a, axis=-1: b.mean(axis) - a.mean(axis),
        paired=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert row["low"] == pytest.approx(theirs.low, abs=0.3 * error)
    assert row["high"] == pytest.approx(theirs.high, abs=0.3 * error)


def test_pairing_finds_what_two_separate_intervals_hide() -> None:
    first, second = planted(0.05)
    row = paired_differences(series(first), series(second), seed=0).iloc[0]
    assert row["low"] > 0
    unpaired = 2 * 1.96 * np.sqrt((first.var() + second.var()) / PICTURES)
    assert unpaired > 5 * (row["high"] - row["low"])
    assert abs(second.mean() - first.mean()) < unpaired / 2  # separate samples would not show it


def test_coverage_is_near_95_percent() -> None:
    rng = np.random.default_rng(3)
    first = rng.normal(size=(60, 200))
    tables = [
        pd.concat([series(values[:, k], metric=f"m{k}") for k in range(200)])
        for values in (first, first + 0.3 * rng.normal(size=first.shape))
    ]
    found = paired_differences(tables[0], tables[1], seed=0)
    covered = ((found["low"] <= 0) & (found["high"] >= 0)).mean()
    assert 0.90 <= covered <= 0.98


def test_pictures_in_common_only_in_any_order() -> None:
    first, second = np.arange(6.0), np.arange(6.0) * 2
    mixed = series(second, start=3).sample(frac=1, random_state=0)  # p0003.. against p0000..p0005
    row = paired_differences(series(first), mixed, seed=0).iloc[0]
    assert row["n"] == 3
    assert row["difference"] == pytest.approx(np.mean([0 - 3, 2 - 4, 4 - 5]))


def test_identical_results_differ_by_exactly_nothing(tmp_path: Path) -> None:
    values = planted(0)[0]
    a, b = write(tmp_path / "a", "m", values), write(tmp_path / "b", "m", values)
    compared = diffusionlens.compare([a, b])
    assert compared.comparison.names == ["a:m", "b:m"]
    lds = compared.comparison.differences.iloc[0]
    assert (lds["difference"], lds["low"], lds["high"], lds["n"], lds["differing"]) == (0, 0, 0, PICTURES, 0)
    texts = [finding.text for finding in compared.findings]
    assert "LDS, layer 12: no difference at all from a:m on 200 pictures." in texts
    assert any("no interval says" in text for text in texts)  # effective rank: one number of all pictures


@pytest.mark.parametrize(("shift", "claimed"), [(0.05, True), (-0.05, True), (0.005, False)])
def test_sentences_are_no_stronger_than_intervals(tmp_path: Path, shift: float, claimed: bool) -> None:
    first, second = planted(shift)
    compared = diffusionlens.compare([write(tmp_path / "a", "A", first), write(tmp_path / "b", "B", second)])
    text = next(found.text for found in comparison_findings(compared.comparison) if found.text.startswith("LDS"))
    assert ("can't be told apart" not in text) == claimed
    assert (("higher" if shift > 0 else "lower") in text) == claimed


def test_a_handful_of_hits_is_no_finding(tmp_path: Path) -> None:
    """Five pictures all in one direction: the bootstrap keeps clear of zero, a sign test (p = 0.0625) does not."""
    first = np.zeros(PICTURES)
    second = first.copy()
    second[:5] = 100
    compared = diffusionlens.compare([write(tmp_path / "a", "A", first), write(tmp_path / "b", "B", second)])
    assert compared.comparison.differences.iloc[0]["low"] > 0
    text = next(found.text for found in compared.findings if found.text.startswith("LDS"))
    assert "can't be told apart from A: 5 of 200 pictures differ, and 6 are needed" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": "raw"}, "similarity.tokens is raw and normed"),
        ({"data": "voc:/a?split=train"}, "the data are voc:/a?split=train and voc:/a?split=val"),
        ({"start": 1000}, "no picture in common"),
    ],
)
def test_what_was_not_measured_alike_is_refused_or_said(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    first, second = planted(0.05)
    folders = [write(tmp_path / "a", "A", first), write(tmp_path / "b", "B", second, **changes)]
    with pytest.raises(InputError, match="--allow-differences") as refused:
        diffusionlens.compare(folders)
    assert said in str(refused.value)
    assert any(said in text for text in diffusionlens.compare(folders, allow_differences=True).comparison.warnings)


def test_other_places_and_other_pictures_are_said(tmp_path: Path) -> None:
    first, second = planted(0.05)
    b = write(tmp_path / "b", "B", second[:150], data="voc:/elsewhere?split=val&n=150")
    compared = diffusionlens.compare([write(tmp_path / "a", "A", first), b])
    said = " ".join(compared.comparison.warnings)
    assert "different places" in said
    assert "150 in common" in said
    assert compared.comparison.differences.iloc[0]["n"] == 150


def test_baseline_and_choice_of_models(tmp_path: Path) -> None:
    first, second = planted(0.05)
    folders = [write(tmp_path / name, name, values) for name, values in (("a", first), ("b", second), ("c", first))]
    assert diffusionlens.compare(folders, baseline="c", models=["b"]).comparison.names == ["c", "b"]
    with pytest.raises(InputError, match="no model is called 'd'"):
        diffusionlens.compare(folders, baseline="d")
    with pytest.raises(InputError, match="two or more"):
        diffusionlens.compare(folders, models=["a"])


def test_directory_is_whole_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = planted(0.05)
    folders = [write(tmp_path / "a", "<b>A", first), write(tmp_path / "b", "B", second)]
    tables = []
    for out in ("one", "two"):
        given = ["diffusionlens", "compare", *map(str, folders), "--out", str(tmp_path / out), "--json"]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["baseline"] == "<b>A"
        assert answer["differences"][0]["n"] == PICTURES
        tables.append((tmp_path / out / "tables" / "differences.csv").read_bytes())
    assert tables[0] == tables[1]
    page = (tmp_path / "one" / "index.html").read_text()
    assert "<b>A" not in page
    assert "&lt;b&gt;A" in page
    assert {path.name for path in (tmp_path / "one" / "figures").iterdir()} == {
        "differences_by_layer.png",
        "differences_by_layer.pdf",
    }
    again = diffusionlens.compare([tmp_path / "one"])  # a comparison is a result like any other
    assert len(again.comparison.differences) == 2


@pytest.mark.parametrize("damage", ["manifest.json", "results.csv", "per_image.csv.gz"])
def test_damaged_directories_are_one_line(tmp_path: Path, damage: str) -> None:
    folder = write(tmp_path / "a", "A", planted(0)[0])
    (folder / damage).write_bytes(b"\x1f\x8b\x00{[")
    with pytest.raises(InputError):
        diffusionlens.compare([folder, write(tmp_path / "b", "B", planted(0)[0])])
    with pytest.raises(InputError, match="does not exist"):
        diffusionlens.compare([tmp_path / "nowhere"])


@pytest.mark.parametrize(("whole", "claimed"), [(9.0, True), (98.0, False)])
def test_boxes_that_are_the_whole_picture_are_not_compared(tmp_path: Path, whole: float, claimed: bool) -> None:
    """40 more of 200 pictures are hit by LOST, which says nothing when its box is nearly always the whole picture."""
    folders = []
    for model, hits in (("A", 60), ("B", 100)):
        values = np.where(np.arange(PICTURES) < hits, 100.0, 0.0)
        folders.append(write(tmp_path / model, model, values))
        shares = {
            "corloc_lost": hits / 2,
            "corloc_tokencut": hits / 2,
            "lost_whole": whole if model == "A" else 1.0,
            "uncut": 0.0,
        }
        rows = [Row("discovery", metric, value, PICTURES, layer=12) for metric, value in shares.items()]
        write_table(to_frame(rows, model, "d"), folders[-1] / "results.csv")
        pictures = pd.concat([series(values, model, metric) for metric in ("corloc_lost", "corloc_tokencut")])
        pictures.assign(analysis="discovery").to_csv(folders[-1] / "per_image.csv.gz", index=False, lineterminator="\n")
    found = [one.text for one in diffusionlens.compare(folders).findings]
    lost = next(text for text in found if text.startswith("CorLoc LOST"))
    assert any(text.startswith("CorLoc TokenCut (%), layer 12: 20.0 higher than A") for text in found)
    if claimed:
        assert "20.0 higher than A" in lost
    else:
        assert "higher" not in lost
        assert (
            "not compared; LOST's box is the whole picture in 1.00 % of the pictures for B and in 98.0 % of the pictures"
            in lost
        )


def test_a_mean_over_pictures_that_contradicts_the_whole_claims_nothing() -> None:
    row = {
        "model": "b", "analysis": "segmentation", "metric": "miou", "token": "patch", "layer": 12, "difference": 2.0, "low": 1.0,
        "high": 3.0, "n": 60, "differing": 60,
    }  # fmt: skip
    for of_means, wanted in ((-1.0, "nothing is claimed: 2.00 higher"), (4.0, "4.00 higher over all of them together")):
        text = difference_sentence(Shown(SimpleNamespace(**row, of_means=of_means), "mIoU (%)", True), "a")
        assert wanted in text
        assert ("nothing is claimed" in text) == (of_means < 0)
        assert "(1.00 to 3.00)" in text


def test_without_a_picture_in_common_there_are_the_two_numbers(tmp_path: Path) -> None:
    """Refused by default; when asked for all the same, a page with differences that have no interval."""
    first, second = planted(0.05)
    both = [write(tmp_path / "a", "a", first), write(tmp_path / "b", "b", second, start=5000)]
    with pytest.raises(InputError, match="no picture in common"):
        diffusionlens.compare(both)
    made = diffusionlens.compare(both, tmp_path / "out", allow_differences=True)
    assert made.page is not None
    assert made.page.is_file()
    row = made.comparison.differences.set_index("metric").loc["lds"]
    assert row["difference"] == pytest.approx(second.mean() - first.mean(), abs=1e-5)
    assert pd.isna(row["low"])
    assert pd.isna(row["n"])


@pytest.mark.parametrize("place", ["a", "b/../a", "a/sub"])
def test_no_input_is_replaced(place: str, tmp_path: Path) -> None:
    first, second = planted(0.05)
    both = [write(tmp_path / "a", "a", first), write(tmp_path / "b", "b", second)]
    before = (tmp_path / "a" / "results.csv").read_bytes()
    with pytest.raises(InputError, match="which is compared; choose another directory"):
        diffusionlens.compare(both, tmp_path / place)
    assert (tmp_path / "a" / "results.csv").read_bytes() == before
    assert not (tmp_path / "a" / "sub").exists()


def test_other_analyses_are_said_first(tmp_path: Path) -> None:
    first, second = planted(0.05)
    both = [write(tmp_path / "a", "a", first), write(tmp_path / "b", "b", second)]
    table = (both[1] / "results.csv").read_text().replace("similarity", "segmentation")
    (both[1] / "results.csv").write_text(table)
    with pytest.raises(InputError, match=r"b and a have no analysis in common .segmentation; similarity.; nothing"):
        diffusionlens.compare(both)


def test_heads_trained_before_are_compared_with_their_training(tmp_path: Path) -> None:
    first, second = planted(0.05)
    both = [write(tmp_path / "a", "a", first), write(tmp_path / "b", "b", second)]
    for folder, options, probe in ((both[0], {"clip": 35.0, "bins": 256}, {}), (both[1], {"bins": 256}, {"heads": {}})):
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["analyses"]["depth"] = options
        manifest["models"][0]["probe"] = probe
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert len(diffusionlens.compare(both).comparison.differences)
    manifest["analyses"]["depth"] = {"bins": 128}
    (both[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"depth\.bins is 128 and 256"):
        diffusionlens.compare(both)


def test_an_untrained_model_is_called_so(tmp_path: Path) -> None:
    first, second = planted(0.05)
    both = [write(tmp_path / "a", "a", first), write(tmp_path / "b", "b", second)]
    manifest = json.loads((both[1] / "manifest.json").read_text())
    manifest["models"][0]["untrained"] = True
    (both[1] / "manifest.json").write_text(json.dumps(manifest))
    found = diffusionlens.compare(both).findings
    assert found[0].warning
    assert found[0].text.startswith("b is untrained")
