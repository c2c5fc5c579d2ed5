"""Tables hold what was measured, in the order of the metrics, and are left out where nothing was."""

from pathlib import Path

import pandas as pd

from diffusionlens.pages.tables import by_layer_table, last_layer_rows, last_layer_table, write_tables
from diffusionlens.results import Row, to_frame


def norms(model: str) -> pd.DataFrame:
    rows = [
        Row("norms", "outlier_share", 0.0, 9, 12, token="valley (unimodal)", low=0.0, high=0.0),
        Row("norms", "norm_mean", 2.0, 9, 12, token="raw", low=1.0, high=3.0),
        Row("norms", "norm_mean", 5.0, 9, 3, token="raw", low=4.0, high=6.0),
    ]
    return to_frame(rows, model, "d")


def test_an_analysis_that_was_not_asked_for_has_no_table(tmp_path: Path) -> None:
    write_tables(norms("m"), ["m"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["norms.csv", "norms.md", "norms.tex"]
    assert last_layer_rows(norms("m"), "pib", ["m"]).empty
    assert last_layer_table(norms("m"), "pib", ["m"], intervals=True).empty


def test_a_model_without_the_analysis_is_not_a_row_and_metrics_have_their_order() -> None:
    table = last_layer_table(norms("b"), "norms", ["a", "b"], intervals=True)
    assert table.to_dict("records") == [
        {"model": "b", "layer": 12, "mean norm": "2.00 (1.00 to 3.00)", "outliers (valley)": "0 (0 to 0)"}
    ]
    assert list(table.columns) == ["model", "layer", "mean norm", "outliers (valley)"]


def test_names_are_escaped(tmp_path: Path) -> None:
    write_tables(norms("a_b|<i>&$"), ["a_b|<i>&$"], tmp_path)
    assert r"a\_b\textbar{}\textless{}i\textgreater{}\&\$ & 12" in (tmp_path / "norms.tex").read_text()
    assert r"| a_b\|\<i\>&$ | 12 |" in (tmp_path / "norms.md").read_text()


def test_every_layer_has_its_interval() -> None:
    table = by_layer_table(norms("m"), "norms", "m")
    assert table.loc["norm_mean · raw"].to_dict() == {3: "5.00 (4.00 to 6.00)", 12: "2.00 (1.00 to 3.00)"}
    assert table.loc["outlier_share · valley"].to_dict() == {3: "–", 12: "0 (0 to 0)"}
    assert by_layer_table(norms("m"), "norms", "other").empty
