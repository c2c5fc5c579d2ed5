"""A result directory is whole or not there, and names in it stay inert."""

import errno
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from diffusionlens import measure
from diffusionlens.analysis.run import Measurement
from diffusionlens.errors import InputError
from diffusionlens.pages import bundle
from diffusionlens.pages.bundle import write_bundle
from diffusionlens.pages.numbers import typeset, with_interval
from diffusionlens.pages.page import cell
from diffusionlens.pages.tables import last_layer_table

EVIL = "<img src=x onerror=alert(1)>&'\""


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    measured = measure(
        "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64", "scenes:?n=6", layers="0,6,12", images=6
    )
    assert measured is not None
    return measured.measurement


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and most of these tests are not about figures."""
    monkeypatch.setattr(bundle, "draw_figures", lambda *_: [])


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_everything_is_there(measurement: Measurement, tmp_path: Path) -> None:
    page = write_bundle(measurement, tmp_path / "deep" / "out")
    names = {str(path.relative_to(page.parent)) for path in page.parent.rglob("*") if path.is_file()}
    for name in ("index.html", "results.csv", "per_image.csv.gz", "manifest.json"):
        assert name in names
    for stem in (
        "pib_by_layer",
        "pib_overlay",
        "pca_maps",
        "similarity_by_layer",
        "norms",
        "sparsity_by_layer",
        "sparsity_by_head",
    ):
        assert {f"figures/{stem}.png", f"figures/{stem}.pdf"} <= names
    for analysis in ("pib", "norms", "sparsity", "similarity", "pca"):
        assert {f"tables/{analysis}.{suffix}" for suffix in ("csv", "md", "tex")} <= names
    assert [path.name for path in page.parent.parent.iterdir()] == ["out"]  # no temporary directory is left
    per_image = pd.read_csv(page.parent / "per_image.csv.gz")
    hits = per_image[(per_image["metric"] == "pib") & (per_image["layer"] == 12)]["value"]
    results = pd.read_csv(page.parent / "results.csv")
    last = results[(results["metric"] == "pib") & (results["layer"] == 12)]["value"]
    assert hits.mean() == pytest.approx(last.iloc[0], rel=1e-5)  # both were written with six digits
    assert json.loads((page.parent / "manifest.json").read_text())["models"][0]["label"] == "a"


def test_the_page_is_one_file_and_accessible(measurement: Measurement, tmp_path: Path) -> None:
    page = Page(write_bundle(measurement, tmp_path / "out").read_text())
    for tag, attributes in page.tags:
        for name in ("src", "srcset", "href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name)
        assert tag not in ("script", "link", "iframe")
        if tag == "img":
            assert attributes["alt"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
    assert dict(page.tags)["html"] == {"lang": "en"}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["href"] for t, a in page.tags if t == "a"} <= {f"#{name}" for name in ids}
    assert "untrained" in page.text


@pytest.mark.usefixtures("no_figures")
def test_tables_by_layer_show_intervals(measurement: Measurement, tmp_path: Path) -> None:
    page = write_bundle(measurement, tmp_path / "out").read_text()
    rows = measurement.results
    row = next(rows[(rows["metric"] == "cls_patch_cos") & (rows["layer"] == 6)].itertuples())
    value, interval = cell(with_interval(row))
    assert f"<td>{typeset(value)} <small>{typeset(interval)}</small></td>" in page.partition("by layer: a")[2]


@pytest.mark.usefixtures("no_figures")
def test_names_stay_inert(measurement: Measurement, tmp_path: Path) -> None:
    manifest = json.loads(json.dumps(measurement.manifest, default=str))
    manifest["data"][0] |= {
        "label": EVIL,
        "skipped": [{"file": EVIL, "reason": EVIL}],
        "notes": [{"file": EVIL, "reason": EVIL}],
    }
    manifest["models"][0] |= {"label": EVIL, "notes": [EVIL], "dropped": [[EVIL, EVIL]], "spec": EVIL}
    manifest["left_out"] = [{"model": EVIL, "what": EVIL, "reason": EVIL}]
    evil = Measurement(
        measurement.results.assign(model=EVIL, data=EVIL), measurement.pictures, measurement.material, manifest
    )
    out = write_bundle(evil, tmp_path / "out")
    page = Page(out.read_text())
    assert sum(tag == "img" for tag, _ in page.tags) == sum(tag == "source" for tag, _ in page.tags)
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert EVIL in page.text
    tex = (out.parent / "tables" / "pib.tex").read_text()
    assert r"\&" in tex
    assert " & " in tex


@pytest.mark.slow
def test_the_same_measurement_gives_the_same_bytes(measurement: Measurement, tmp_path: Path) -> None:
    first, second = (write_bundle(measurement, tmp_path / name).parent for name in ("one", "two"))
    for path in sorted(first.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes(), path.name


@pytest.mark.usefixtures("no_figures")
def test_an_earlier_result_is_replaced_and_nothing_else_is(measurement: Measurement, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_bundle(measurement, out)
    (out / "figures" / "old.png").write_bytes(b"")
    write_bundle(measurement, out)
    assert not (out / "figures" / "old.png").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="not a result of diffusionlens"):
        write_bundle(measurement, other)
    assert (other / "thesis.tex").read_text() == "precious"
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        write_bundle(measurement, tmp_path / "file")


@pytest.mark.usefixtures("no_figures")
def test_a_disk_that_fills(measurement: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_bundle(measurement, out)
    before = (out / "results.csv").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle, "write_tables", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_bundle(measurement, out)
    assert (out / "results.csv").read_bytes() == before
    with pytest.raises(InputError, match="No space left on device"):
        write_bundle(measurement, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_last_layer_table(measurement: Measurement) -> None:
    table = last_layer_table(measurement.results, "pib", ["a"], intervals=False)
    results = measurement.results
    expected = results[(results["metric"] == "pib") & (results["layer"] == 12)]["value"].iloc[0]
    assert table.loc[0, "layer"] == 12
    assert table.loc[0, "PiB (%)"] == expected
    assert np.isclose(table.loc[0, "lift (points)"], expected - table.loc[0, "chance (%)"])
