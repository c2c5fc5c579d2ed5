"""Values of single pictures: millions for thousands of pictures, so they stay on a shelf until they are written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from diffusionlens.results import PER_IMAGE_COLUMNS
from diffusionlens.shelf import Shelf

_AT_ONCE = 2**14
"""Values in a table: a table for each series takes longer to make than to write where there are few pictures."""


@dataclass(frozen=True)
class Series:
    """The key of one column of values: its metric, layer, head and token kind, as in the table."""

    metric: str
    layer: int | None
    head: str
    token: str


@dataclass(frozen=True)
class Block:
    """Several series of the same pictures. `names` [P] of the pictures, `values` P rows of C numbers, NaN where a picture has
    none."""

    model: str
    data: str
    analysis: str
    series: Sequence[Series]
    names: NDArray[Any]
    values: Shelf

    def frames(self) -> Iterator[pd.DataFrame]:
        """Tables with the columns of per_image.csv.gz: series after series, as many at a time as `_AT_ONCE` values hold."""
        together = max(1, _AT_ONCE // max(1, len(self.names)))
        for start in range(0, len(self.series), together):
            series = self.series[start : start + together]
            values = self.values.columns(slice(start, start + len(series))).T
            which, picture = np.nonzero(~np.isnan(values))
            keys = pd.DataFrame([vars(one) for one in series], dtype=object).iloc[which].reset_index(drop=True)
            keys = keys.assign(model=self.model, data=self.data, analysis=self.analysis)
            yield keys.assign(name=self.names[picture], value=values[which, picture])[PER_IMAGE_COLUMNS]


class PerImage:
    """The values behind per_image.csv.gz, in its order; `parts` are tables with its columns, or blocks of columns."""

    def __init__(self, parts: Sequence[pd.DataFrame | Block]) -> None:
        self.parts = list(parts)

    @classmethod
    def joined(cls, several: Sequence["PerImage"]) -> "PerImage":
        return cls([part for one in several for part in one.parts])

    def frames(self) -> Iterator[pd.DataFrame]:
        for part in self.parts:
            if isinstance(part, Block):
                yield from part.frames()
            else:
                yield part

    def frame(self) -> pd.DataFrame:
        """All of it as one table; some hundred bytes a value."""
        frames = list(self.frames())
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=PER_IMAGE_COLUMNS)

    def write(self, file: IO[str]) -> None:
        """As CSV, some series after the other, so that memory for those is enough."""
        pd.DataFrame(columns=PER_IMAGE_COLUMNS).to_csv(file, index=False, lineterminator="\n")
        for frame in self.frames():
            frame.to_csv(file, index=False, header=False, float_format="%.6g", lineterminator="\n")
