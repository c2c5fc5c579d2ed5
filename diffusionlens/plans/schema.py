"""A plan: what data it asks for, and its sections. Typed; every key is in docs/reports.md."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diffusionlens.data.transforms.fit import Fit

Provision = Literal["boxes", "masks", "labels", "depth"]
Value = str | int | float | bool | None | list[str | int | float]
"""The value of an option of an analysis or a probe."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Role(_Part):
    """Data that a plan asks for. `what`: in words, for whoever must find them; `needs`: what their pictures carry; `train`:
    also a training set of the same classes, for heads; `many`: every fitting data set is taken, not only the first; `unless`:
    data that carry this too are taken only when they are given for this role by name; `example`: a DATA string; `default`,
    `default_train`: DATA that is taken when none is given."""

    what: str
    needs: tuple[Provision, ...] = ()
    train: bool = False
    many: bool = False
    unless: tuple[Provision, ...] = ()
    example: str
    default: str | None = None
    default_train: str | None = None


class _Section(_Part):
    """`title` and `caption` stand on the page; `data` names the role of its pictures."""

    title: str
    caption: str = ""
    data: str


class _Drawn(_Section):
    """`figures`: by their names, in their order; `table`: the last layer, models side by side; `by_layer`: also every layer,
    folded away; `differences`: a figure of the differences to the baseline by layer, picture by picture."""

    figures: tuple[str, ...] = ()
    table: bool = True
    by_layer: bool = True
    differences: bool = False
    layers: str = "all"
    images: int | None = Field(default=None, ge=1)
    size: str | None = None
    options: dict[str, Value] = {}


class MeasureSection(_Drawn):
    """Analyses of `measure`; `options` as its `--set`: `pib.hit: center`."""

    kind: Literal["measure"]
    analyses: tuple[str, ...] = Field(min_length=1)
    fit: Fit = "crop"


class ProbeSection(_Drawn):
    """A task of `probe`, for every data set of its role; `options` as its `--set`: `iterations: 500`. Presets other than fast may
    take whole pictures another way (docs/probing.md)."""

    kind: Literal["probe"]
    task: Literal["segmentation", "depth", "classification"]
    preset: str = "fast"
    tokens: str = "all"
    seeds: int = Field(default=3, ge=1, le=100)


class TrackSection(_Section):
    """Analyses at `checkpoints` checkpoints of every model that is a training run."""

    kind: Literal["track"]
    analyses: tuple[str, ...] = ("pib", "norms", "sparsity", "similarity")
    checkpoints: int | None = Field(default=None, ge=1)
    figures: tuple[str, ...] = ("track_by_epoch", "track_by_layer")
    layers: str = "all"
    images: int | None = Field(default=None, ge=1)
    size: str | None = None
    fit: Fit = "crop"
    options: dict[str, Value] = {}


class ExplorerSection(_Section):
    """The token explorer on `pictures` pictures, evenly spaced; it takes part in the pass of other sections on the same data."""

    kind: Literal["explorer"]
    pictures: int = Field(default=6, ge=1)
    attention: bool = True
    layers: str = "all"
    images: int | None = Field(default=None, ge=1)
    size: str | None = None
    fit: Fit = "crop"


class Column(_Part):
    """A column of a table: `metric` (and `token`, or the first of "a | b" that is there) of a section at the last layer; one for
    each of its data sets."""

    section: str
    metric: str
    token: str = ""
    title: str
    better: Literal["higher", "lower"] = "higher"


class TableSection(_Part):
    """Models by numbers of other sections, the differences to the baseline, and what was `published`."""

    kind: Literal["table"]
    title: str
    caption: str = ""
    columns: tuple[Column, ...] = Field(min_length=1)
    published: str | None = None


Section = Annotated[
    MeasureSection | ProbeSection | TrackSection | ExplorerSection | TableSection, Field(discriminator="kind")
]
DrawnSection = MeasureSection | ProbeSection


class Plan(_Part):
    """A report: `title` and `about` stand on its page; `data`: roles; `sections` by name, in their order. `images` and `size` are
    those of sections that say nothing else."""

    title: str
    about: str = ""
    data: dict[str, Role] = Field(min_length=1)
    images: int | None = Field(default=None, ge=1)
    size: str | None = None
    sections: dict[str, Section] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> "Plan":
        for kind, names in (("section", self.sections), ("role", self.data)):
            for name in names:
                if not (name.isascii() and name.replace("_", "a").isalnum() and len(name) <= 30):
                    raise ValueError(
                        f"the {kind} '{name}' may have letters, digits and '_' in its name, thirty at most"
                    )
        if sum(isinstance(section, ExplorerSection) for section in self.sections.values()) > 1:
            raise ValueError("a page has room for one explorer; leave the others out")
        return self
