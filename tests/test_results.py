"""The tidy table survives writing and reading."""

from pathlib import Path

import pandas as pd
import pytest

from diffusionlens.errors import InputError
from diffusionlens.results import COLUMNS, Row, read_table, to_frame, write_table


def test_round_trip(tmp_path: Path) -> None:
    rows = [
        Row("pib", "pib", 61.111111111, 18, 0, None, "cls", 38.6, 79.7),
        Row("sparsity", "support", 3.0, 5, 2, 4, "cls>patch"),
        Row("sparsity", "support", 3.5, 5, 2, "mean", "cls>patch", 3.0, 4.0),
    ]
    frame = to_frame(rows, "a, b", "voc")
    write_table(frame, tmp_path / "results.csv")
    again = read_table(tmp_path / "results.csv")
    assert list(again.columns) == COLUMNS
    pd.testing.assert_frame_equal(again, frame, rtol=1e-5)
    write_table(again, tmp_path / "again.csv")
    assert (tmp_path / "results.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "results.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="has the columns a, b"):
        read_table(tmp_path / "other.csv")
