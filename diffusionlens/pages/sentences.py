"""What sentences are made from: the rows of a model."""

from typing import Any, Protocol


class Numbers(Protocol):
    """The rows of one model, looked up by metric (see `findings`)."""

    def series(self, analysis: str, metric: str, token: str | None = None) -> list[Any]: ...
    def measured(self, analysis: str) -> bool: ...
    def last(self, analysis: str, metric: str, token: str | None = None) -> Any | None: ...
