"""A whole report: what is in the directory, that its numbers are those of `measure` and `probe`, and what the page says."""

import json
import re
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import diffusionlens
from diffusionlens.cli import main
from diffusionlens.comparison.paired import paired_differences
from diffusionlens.errors import InputError
from diffusionlens.pages.findings import Finding
from diffusionlens.results import read_table
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.processes import two
from tests.result_directories import contents

HEADS = ["iterations=5", "points=16", "rates=[0.003]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def models(folder: Path) -> list[str]:
    return write_models(folder)


@pytest.fixture(scope="module")
def made(folder: Path, models: list[str]) -> diffusionlens.api.Reported:
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # five steps choose no rate; what is said of chosen ones is tested elsewhere
        patch.setattr("diffusionlens.plans.content.probe_remarks", lambda manifest: [Finding("A remark.", "one")])
        return diffusionlens.report(write_plan(folder), models, DATA, folder / "out", train=TRAIN, size="32")


@pytest.fixture(scope="module")
def out(made: diffusionlens.api.Reported) -> Path:
    return made.page.parent


def test_one_directory(out: Path) -> None:
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    figures = (
        "pib_pib_by_layer",
        "pib_pca_maps",
        "similarity_differences_by_layer",
        "heads_probe_by_layer",
        "gain_gain_bars",
    )
    tables = ("pib_pib", "pib_pca", "similarity_similarity", "heads_segmentation", "gain_complementarity", "main")
    assert {f"figures/{stem}.{kind}" for stem in figures for kind in ("png", "pdf")} <= names
    assert {f"tables/{stem}.{kind}" for stem in tables for kind in ("csv", "tex", "md")} <= names
    assert {"index.html", "results.csv", "per_image.csv.gz", "manifest.json", "figures/captions.txt"} <= names
    assert {path.name for path in out.parent.iterdir() if path.is_dir()} == {"out"}  # the parts are gone


@pytest.mark.slow
def test_two_processes_make_the_same_report(folder: Path, models: list[str], out: Path) -> None:
    """Numbers and tables; the first process writes, and nothing else is left. In other batches, values of single pictures have
    other last digits."""
    asked = ["report", str(write_plan(folder)), "--data", DATA, "--train", TRAIN, "--size", "32", "--out", "of_two"]
    asked += [word for model in models for word in ("--model", model)]
    ended = two(asked, [folder, folder])
    assert [status for status, _ in ended] == [0, 0], ended[0][1]
    of_two = contents(folder / "of_two")
    of_one = contents(out)
    assert list(of_two) == list(of_one)
    assert [name for name in of_one if "tables/" in name and of_one[name] != of_two[name]] == []
    for name in ("results.csv", "per_image.csv.gz"):
        one, other = (pd.read_csv(place / name, dtype=str) for place in (out, folder / "of_two"))
        values = [name for name in ("value", "low", "high") if name in one]
        pd.testing.assert_frame_equal(one.drop(columns=values), other.drop(columns=values))
        for column in values:
            np.testing.assert_allclose(*(pd.to_numeric(frame[column]) for frame in (one, other)), rtol=1e-5, atol=1e-6)
    assert not list(folder.glob(".*"))


def test_fonts_are_embedded_as_truetype(out: Path) -> None:
    """42 is TrueType, which journals take; Type 3 would be matplotlib's default."""
    for path in (out / "figures").glob("*.pdf"):
        content = path.read_bytes()
        assert b"/Type3" not in content, path.name
        assert b"/FontFile2" in content or b"/Font " not in content, path.name


def test_numbers_are_those_of_the_commands(out: Path, models: list[str]) -> None:
    """What one pass for several sections finds is what each would have found alone."""
    results = read_table(out / "results.csv")
    alone = diffusionlens.measure(models, DATA, analyses="pib", size="32")
    heads = diffusionlens.probe(
        "segmentation", models, DATA, TRAIN, tokens="patch,cls+patch", seeds=2, size="32", options=HEADS
    )
    assert alone is not None
    assert heads is not None
    for theirs, analyses in ((alone, ["pib"]), (heads, ["segmentation", "complementarity"])):
        wanted = theirs.measurement.results
        ours = results[results["analysis"].isin(analyses)].reset_index(drop=True)
        assert list(ours["metric"]) == list(wanted["metric"])
        np.testing.assert_allclose(ours["value"], wanted["value"], rtol=1e-5)  # written with six digits
        np.testing.assert_allclose(ours["low"], wanted["low"], rtol=1e-5)
    table = pd.read_csv(out / "tables" / "main.csv").set_index("model")
    for theirs, heading, metric, token in (
        (alone, "scenes PiB (%)", "pib", None), (heads, "scenes mIoU (%)", "miou", "patch"),
    ):  # fmt: skip
        rows = theirs.measurement.results
        rows = rows[(rows["metric"] == metric) & (rows["layer"] == 2)]
        rows = rows[rows["token"] == token] if token else rows
        for name in ("one", "two_b"):
            row = rows[rows["model"] == name].iloc[0]
            assert table.loc[name, heading] == pytest.approx(row["value"], rel=1e-5)
            assert table.loc[name, f"{heading} low"] == pytest.approx(row["low"], rel=1e-5)
        values = theirs.measurement.per_image
        each = "miou_jackknife" if metric == "miou" else metric  # mIoU is no mean over pictures
        values = values[(values["metric"] == each) & (values["layer"] == 2)]
        values = values[values["token"] == token] if token else values
        one, two = (values[values["model"] == name] for name in ("one", "two_b"))
        paired = paired_differences(one, two, seed=0).iloc[0]
        assert table.loc["two_b - one", heading] == pytest.approx(paired["difference"], rel=1e-5, abs=1e-9)
        numbers = rows.set_index("model")["value"]
        assert paired["difference"] == pytest.approx(numbers["two_b"] - numbers["one"], rel=1e-5, abs=1e-9)
        assert table.loc["two_b - one", f"{heading} high"] == pytest.approx(paired["high"], rel=1e-5, abs=1e-9)


def test_best_is_bold_and_latex_is_safe(out: Path) -> None:
    table = pd.read_csv(out / "tables" / "main.csv").iloc[:2]
    text = (out / "tables" / "main.tex").read_text()
    lines = [line for line in text.splitlines() if " & " in line]
    assert all(re.sub(r"\\&", "", line).count("&") == 2 for line in lines)
    for place, heading in ((1, "scenes PiB (%)"), (2, "scenes mIoU (%)")):
        bold = ["\\textbf" in line.split(" & ")[place] for line in lines[1:3]]
        values = table[heading].tolist()
        assert bold == ([value == max(values) for value in values] if values[0] != values[1] else [False, False])
        assert "\\textbf" not in lines[3].split(" & ")[place]  # a difference is no score
    assert r"two\_b $-$ one" in text
    for path in (out / "tables").glob("*.tex"):
        body = path.read_text()
        assert not re.search(r"(?<!\\)[%#~^|<>]", body.replace(r"$-$", "").replace("~", "")), path.name
        assert not re.search(r"(?<!\\)_", re.sub(r"\\label\{[^}]*\}", "", body)), path.name
        assert body.count("{") - body.count(r"\{") == body.count("}") - body.count(r"\}")
        assert body.count(r"\begin") == body.count(r"\end")
        assert not set(body) & set("−×·…–"), path.name


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_whole(made: diffusionlens.api.Reported, out: Path) -> None:
    text = (out / "index.html").read_text()
    page = _Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe")
        for name in ("src", "srcset", "href"):
            assert str(attributes.get(name) or "#").startswith(("data:", "#"))
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
        if tag == "img" and "src" in attributes:
            assert attributes["alt"]
    places = [text.index(f'id="{name}"') for name in ("findings", "pib", "similarity", "heads", "gain", "main", "made")]
    assert places == sorted(places)  # what was found comes first
    assert any(found.model == "two_b" and "one" in found.text for found in made.findings)
    assert 'id="h-explorer">Look inside' in text
    assert text.count("one: A remark.") == 1  # of two sections that share the job
    assert "Nothing here is of the data of the published table" in text  # scenes have no published number
    assert not re.search(r"\d+ s<", text)  # no times, so that the page is the same after an interruption


def test_no_claim_where_the_interval_holds_zero(made: diffusionlens.api.Reported) -> None:
    against = [found for found in made.findings if found.rows and hasattr(found.rows[0], "differing")]
    assert against
    for found in against:
        row = found.rows[0]
        unsure = pd.isna(row.low) or row.low <= 0 <= row.high or row.differing < 6
        assert ("can't be told apart" in found.text or "no difference" in found.text) == bool(unsure), found.text


def test_manifest_says_how(out: Path, models: list[str]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    assert [model["label"] for model in manifest["models"]] == ["one", "two_b"]
    assert manifest["models"][0]["sha256"]
    assert [job["sections"] for job in manifest["jobs"]] == ["pib, similarity, look", "heads, gain"]
    assert [(data["label"], data["measured"]) for data in manifest["data"]] == [
        ("scenes", 10), ("scenes", 10), ("train", 12),
    ]  # fmt: skip
    assert models[0].partition("=")[2] in manifest["models"][0]["spec"]


def test_the_package_keeps_its_rooms() -> None:
    """`report` is a function of the package: no room may have its name."""
    from diffusionlens.pages.figures import FIGURE_STEMS

    assert "pib_by_layer" in FIGURE_STEMS
    assert callable(diffusionlens.report)
    for name in diffusionlens.__all__:
        assert find_spec(f"diffusionlens.{name}") is None, f"diffusionlens.{name} is a function and a module"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": []}, "the plan needs more than was given"),
        ({"models": []}, "no model was given"),
        ({"models": ["nowhere.pth"]}, "nowhere.pth"),
        ({"size": "33"}, "33"),
        ({"images": 0}, "--images 0"),
        ({"plan": "papers"}, "did you mean 'paper'"),
        ({"settings": ["pib.layers='0,9'"]}, "layers of the plan: 9: the model one has the layers 0"),
        ({"plan": "training", "data": [DATA], "train": []}, "none of the models given is a training run"),
    ],
)
def test_refused_before_any_work(
    folder: Path, models: list[str], change: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusionlens.api.reporting.run_jobs", lambda *_: pytest.fail("work was begun"))
    asked: dict[str, object] = {"plan": write_plan(folder), "models": models, "data": [DATA], "train": [TRAIN]} | change
    with pytest.raises(InputError, match=said):
        diffusionlens.report(out=folder / "never", **asked)  # type: ignore[arg-type]
    assert not (folder / "never").exists()
    assert not list(folder.glob(".never*"))


@pytest.mark.slow
def test_command_and_training_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from diffusionlens.training.train import train
    from tests.training.tiny import DATA as LEARNED
    from tests.training.tiny import TINY

    train("tiny_scenes_entmax15", LEARNED, folder / "run", settings=TINY)
    given = ["report", "training", "--model", f"run={folder / 'run'}", "--images", "8", "--size", "32"]
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *given, "--out", str(folder / "curves"), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    answer = json.loads(capsys.readouterr().out)
    assert Path(answer["page"]).is_file()
    assert list(answer["seconds"]) == ["curves (scenes)"]
    assert any("epoch" in found["text"] for found in answer["findings"])
    rows = read_table(folder / "curves" / "results.csv")
    data = "scenes=scenes:?n=200&seed=1&size=64"
    tracked = diffusionlens.track(f"run={folder / 'run'}", data, folder / "t", images=8, size="32")
    assert tracked is not None
    np.testing.assert_allclose(rows["value"], tracked.track.measurement.results["value"], rtol=1e-5)
