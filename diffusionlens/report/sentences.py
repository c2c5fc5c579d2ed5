"""What sentences are made from: the rows of a model, and whether two intervals meet."""

from typing import Any, Protocol

import pandas as pd


class Numbers(Protocol):
    """The rows of one model, looked up by metric (see `findings`)."""

    def series(self, analysis: str, metric: str, token: str | None = None) -> list[Any]: ...
    def last(self, analysis: str, metric: str, token: str | None = None) -> Any | None: ...


def overlap(first: Any, second: Any) -> bool:
    """Whether two rows' intervals meet; rows without an interval count as not told apart."""
    bounds = (first.low, first.high, second.low, second.high)
    if any(pd.isna(bound) for bound in bounds):
        return True
    return bool(first.low <= second.high and second.low <= first.high)
