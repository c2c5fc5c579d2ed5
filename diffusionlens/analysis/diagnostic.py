"""The contract of every diagnostic: fed batch by batch from one forward pass, asked for its table at the end."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torchmetrics import Metric

from diffusionlens.analysis.intervals import Floats, bootstrap_ratio, wilson
from diffusionlens.capture import AttentionBlock, Trace
from diffusionlens.data.sample import Batch, Sample
from diffusionlens.models.backbone import Backbone
from diffusionlens.results import COLUMNS, Row
from diffusionlens.shelf import Numbers, Shelf, Storage

NUMBERS = 2**20  # of all pictures, that a part of a table takes up at once: 8 MiB, some times over

Need = Literal["boxes", "masks", "labels", "attention", "cls"]


class Options(BaseModel):
    """Base of a diagnostic's options: immutable, finite, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Context:
    """What a diagnostic knows before the first picture.

    `layers` are the layers to report, in order; `indices` the pictures that will come, over all processes; `provides`
    what the data carries; `samples` the indices of the pictures shown on the page. `picture` opens one of the pictures
    as the model sees it, for a diagnostic that needs another picture beside the batch's; it raises `UnreadablePicture`.
    """

    backbone: Backbone
    layers: tuple[int, ...]
    indices: tuple[int, ...]
    provides: frozenset[str]
    seed: int
    samples: tuple[int, ...] = ()
    picture: Callable[[int], Sample] | None = None

    @property
    def grid(self) -> tuple[int, int]:
        return self.backbone.grid

    def evenly_spaced(self, count: int) -> frozenset[int]:
        """At most `count` of the pictures, evenly spaced."""
        return frozenset(evenly_spaced(self.indices, count))


def evenly_spaced(indices: Sequence[int], count: int) -> list[int]:
    """All of `indices`, or `count` of them evenly spaced, so that every part of an ordered data set stays in."""
    if count >= len(indices):
        return list(indices)
    return [indices[place * len(indices) // count] for place in range(count)]


@dataclass(frozen=True)
class Column:
    """One series of per-picture values. `kind`: how its interval is made; `scale`: factor of the reported value."""

    metric: str
    layer: int | None = None
    head: int | str | None = None
    token: str | None = None
    kind: Literal["mean", "proportion"] = "mean"
    scale: float = 1.0


Part = tuple[Sequence[Column], Floats, Floats]
"""Columns with numerator and denominator, [pictures, columns]; a picture that does not count has 0 in both."""


@dataclass(frozen=True)
class LeftOut:
    """A metric or analysis that could not be had, and why, for the page and the manifest."""

    what: str
    reason: str


class Diagnostic(Metric):
    """A diagnostic of per-picture values, accumulated over batches and processes.

    Subclasses set `name`, `needs` and `options_type`, give their `columns`, and call `record` once per batch from
    `update`. A value of the table is sum(numerator) / sum(denominator) over pictures, in the order of the data set,
    so that the batch size and the number of processes change nothing.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    options_type: ClassVar[type[Options]] = Options
    full_state_update = False

    extra_forwards: Tensor

    def __init__(self, context: Context, options: Options) -> None:
        super().__init__()
        self.context = context
        self.options = options
        self.left_out: list[LeftOut] = []
        self.watches = "attention" in self.needs
        """Whether `observe` wants the attention of every layer."""
        self.kept: dict[Any, Any] = {}
        """What is shown of single pictures; gathered from all processes."""
        self.add_state("extra_forwards", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.storage = Storage()
        self.shelves = {name: Shelf(self.storage) for name in ("index", "numerator", "denominator")}
        """One row for every recorded picture: its index in the data set, and what `record` got. Subclasses may add shelves
        (and then put one row a picture on them, too); those of all processes are joined after the pass."""

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Takes in what another process has seen: the diagnostic itself, with its shelves, or its `metric_state` alone."""
        super().merge_state(incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state)
        if isinstance(incoming_state, Diagnostic):
            for name, shelf in self.shelves.items():
                if len(incoming_state.shelves[name]):
                    shelf.append(incoming_state.shelves[name].columns())

    def reset(self) -> None:
        """Forgets every picture, whatever a subclass keeps of them: as new, but for attention that can't be seen."""
        context, options, watches = self.context, self.options, self.watches
        self.__dict__.clear()
        self.__init__(context, options)  # type: ignore[misc]
        self.watches = watches

    def forward(self, trace: Trace, batch: Batch) -> None:
        """The same as `update`; a batch alone has no table."""
        self.update(trace, batch)

    @property
    @abstractmethod
    def columns(self) -> Sequence[Column]:
        """The per-picture series, in the order in which `record` gets them."""

    @abstractmethod
    def update(self, trace: Trace, batch: Batch) -> None:
        """Takes in one batch."""

    def observe(self, block: AttentionBlock, batch: Batch) -> None:
        """Takes in the attention of one layer for some pictures of `batch`; comes before `update` of that batch."""

    def without_attention(self) -> str | None:
        """Goes on without attention, which can't be seen in this model, and returns what is lost; None: it can't go on."""
        return None

    def changed_pictures(self, batch: Batch) -> dict[str, Tensor]:
        """Pictures [b,3,H,W] made from those of `batch`, by name, whose tokens `update` needs beside the batch's own.

        `update` finds their traces in `trace.changed`, taken in the same way. Each picture costs one forward pass more,
        which is counted in `extra_forwards`.
        """
        return {}

    @property
    def dropped_pictures(self) -> dict[str, int]:
        """How many pictures were not measured, by reason."""
        return {}

    def shown(self) -> dict[str, Any]:
        """What figures need of this diagnostic beside the table: fields of `ModelMaterial`."""
        return {}

    def finish(self) -> None:
        """Comes after the last batch of this process, before the processes' states are gathered."""

    def record(self, batch: Batch, numerator: Tensor, denominator: Tensor | None = None) -> None:
        """Adds per-picture values [B, columns]; NaN in `numerator` says that a picture does not count there."""
        if torch.isinf(numerator).any():  # a division by nothing that should have been NaN: a fault, never a number
            raise ArithmeticError(f"{self.name}: an infinite value for a picture of {[s.name for s in batch.samples]}")
        undefined = torch.isnan(numerator)
        weight = torch.ones_like(numerator) if denominator is None else denominator.clone()
        weight[undefined] = 0
        self.shelves["index"].append(np.array([[sample.index] for sample in batch.samples]))
        self.shelve("numerator", torch.where(undefined, 0, numerator).float())
        self.shelve("denominator", weight.float())

    def shelve(self, name: str, rows: Tensor) -> None:
        """Puts rows [B,...] on a shelf, one a picture."""
        self.shelves[name].append(rows.flatten(1).cpu().numpy())

    @property
    def order(self) -> list[int]:
        """Index in the data set of every recorded picture, ascending."""
        return sorted(self.shelves["index"].columns().ravel().tolist())

    def ordered(self, shelf: str, columns: slice = slice(None)) -> Numbers:
        """Some columns of a shelf, pictures in the order of the data set; [0,0] when no picture came."""
        return self.shelves[shelf].columns(columns)[self.shelves["index"].columns().ravel().argsort()]

    def recorded(self, columns: slice = slice(None)) -> Part:
        """What `record` got, of some of the columns."""
        named = self.columns[columns]
        found = (self.ordered(name, columns).astype(np.float64) for name in ("numerator", "denominator"))
        numerator, denominator = (values if len(values) else np.zeros((0, len(named))) for values in found)
        return named, numerator, denominator

    def at_once(self, numbers: int = 1) -> int:
        """How many columns, or groups of so many columns, fit into a part of `series`."""
        return max(1, NUMBERS // (numbers * max(1, len(self.shelves["index"]))))

    def series(self) -> Iterator[Part]:
        """Columns with numerator and denominator [pictures, columns], in parts that fit into memory; subclasses may add
        derived columns."""
        for start in range(0, len(self.columns), self.at_once()):
            yield self.recorded(slice(start, start + self.at_once()))

    def table(self) -> list[Row]:
        """Every metric's rows, those of several heads also averaged as head "mean"."""
        return [row for part in self.series() for row in self._rows(*part)]

    def _rows(self, columns: Sequence[Column], numerator: Floats, denominator: Floats) -> list[Row]:
        low, high = bootstrap_ratio(numerator, denominator, self.context.seed)
        rows = []
        for place, column in enumerate(columns):
            n = int((denominator[:, place] > 0).sum())
            if n == 0:
                continue
            total = float(denominator[:, place].sum())
            value = float(numerator[:, place].sum()) / total
            bounds = (float(low[place]), float(high[place]))
            if column.kind == "proportion":
                n = round(total)
                bounds = wilson(value * n, n)
            rows.append(_row(self.name, column, value, bounds, n))
        return rows

    def per_image(self) -> Iterator[tuple[Sequence[Column], Floats]]:
        """Columns and values [pictures, columns] of per_image.csv.gz in parts, rows in the order of `order`."""
        for columns, numerator, denominator in self.series():
            with np.errstate(invalid="ignore", divide="ignore"):
                values = np.where(denominator > 0, numerator / denominator, np.nan)
            yield columns, values * np.array([column.scale for column in columns])

    def compute(self) -> pd.DataFrame:
        """`table` as torchmetrics asks for it: one row a number, the columns of results.csv from `analysis` on."""
        return pd.DataFrame([asdict(row) for row in self.table()], columns=COLUMNS[2:])


def _row(analysis: str, column: Column, value: float, bounds: tuple[float, float], n: int) -> Row:
    low, high = (None if np.isnan(bound) else bound * column.scale for bound in bounds)
    return Row(analysis, column.metric, value * column.scale, n, column.layer, column.head, column.token, low, high)
