"""The tidy table that every command writes: its columns, and how it is written and read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from diffusionlens.errors import InputError

COLUMNS = ["model", "data", "analysis", "metric", "layer", "head", "token", "value", "low", "high", "n"]
PER_IMAGE_COLUMNS = ["model", "data", "name", "analysis", "metric", "layer", "head", "token", "value"]
JACKKNIFE = "_jackknife"
"""After a metric's name in per_image.csv.gz: what a picture contributes to a ratio of sums, such that the mean over pictures
is the metric of all of them."""


@dataclass(frozen=True)
class Row:
    """One number. `layer` 0 is the input of the first block; `head` a head's number or "mean"; `token` a token
    kind or rule; `low`, `high` a 95 % interval; `n` the count behind `value`. None where it does not apply."""

    analysis: str
    metric: str
    value: float
    n: int
    layer: int | None = None
    head: int | str | None = None
    token: str | None = None
    low: float | None = None
    high: float | None = None


def to_frame(rows: Iterable[Row], model: str, data: str) -> pd.DataFrame:
    """The rows as a table with the columns of the contract."""
    frame = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS[2:])
    frame.insert(0, "data", data)
    frame.insert(0, "model", model)
    return tidy(frame[COLUMNS])


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Gives the columns their types, so that a table read back equals the one written."""
    frame = frame.astype({"layer": "Int64", "n": "Int64", "value": float, "low": float, "high": float})
    for column in ("head", "token"):
        frame[column] = frame[column].map(lambda value: "" if pd.isna(value) else str(value)).astype(object)
    return frame


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Writes `frame` as CSV, numbers with six significant digits, the same bytes for the same table."""
    frame.to_csv(
        path, index=False, float_format="%.6g", lineterminator="\n", encoding="utf-8", errors="backslashreplace"
    )


def read_table(path: Path) -> pd.DataFrame:
    """Reads a results.csv.

    Raises:
        InputError: the file is missing or has other columns.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; wanted the results.csv of a result directory")
    frame = pd.read_csv(path, dtype={"head": str, "token": str}, keep_default_na=True)
    if list(frame.columns) != COLUMNS:
        raise InputError(f"{path} has the columns {', '.join(frame.columns)}; wanted {', '.join(COLUMNS)}")
    return tidy(frame)
