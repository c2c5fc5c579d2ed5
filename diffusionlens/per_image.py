"""Values of single pictures: millions for thousands of pictures, so they stay on a shelf until they are written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from diffusionlens.results import PER_IMAGE_COLUMNS
from diffusionlens.shelf import Shelf


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
        """One table for every series that has values, with the columns of per_image.csv.gz."""
        for place, series in enumerate(self.series):
            values = self.values.columns(slice(place, place + 1)).ravel()
            defined = ~np.isnan(values)
            frame = pd.DataFrame({"name": self.names[defined], "value": values[defined]})
            keys = {"model": self.model, "data": self.data, "analysis": self.analysis, **vars(series)}
            yield frame.assign(**keys)[PER_IMAGE_COLUMNS]


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
        """As CSV, one series after the other, so that memory for one is enough."""
        pd.DataFrame(columns=PER_IMAGE_COLUMNS).to_csv(file, index=False, lineterminator="\n")
        for frame in self.frames():
            frame.to_csv(file, index=False, header=False, float_format="%.6g", lineterminator="\n")
