"""Published numbers, read from published.yaml: what stands beside a report's own, with its source."""

from importlib.resources import files
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator


class PublishedColumn(BaseModel):
    """A score on a data set: `data` is the kind of a DATA string (voc, imagenet, ...), `where` the number was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    task: str
    metric: str
    data: str
    where: str


class Published(BaseModel):
    """A published table. `rows`: a method's values, one a column; `unknown` says what is not public."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    table: str
    protocol: str
    unknown: str = ""
    columns: tuple[PublishedColumn, ...]
    rows: dict[str, Annotated[tuple[float, ...], Field(min_length=1)]]

    @model_validator(mode="after")
    def _whole(self) -> "Published":
        if any(len(values) != len(self.columns) for values in self.rows.values()):
            raise ValueError("a row has not one value a column")
        return self

    def column(self, task: str, metric: str, data: str) -> int | None:
        """The place of the column with this score on this kind of data."""
        wanted = (task, metric, data)
        places = [place for place, own in enumerate(self.columns) if (own.task, own.metric, own.data) == wanted]
        return places[0] if places else None


def published_names() -> list[str]:
    """The names of the published tables."""
    return list(_content())


def read_published(name: str) -> Published:
    """The published table `name`, which must be one of `published_names`."""
    return Published.model_validate(_content()[name])


def _content() -> dict[str, object]:
    text = files("diffusionlens.plans").joinpath("published.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
