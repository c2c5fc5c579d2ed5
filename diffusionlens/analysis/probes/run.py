"""What a probe is made with, and one model's probe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.training import Scored
from diffusionlens.analysis.probes.outcomes.scores import LayerScores
from diffusionlens.analysis.probes.settings.recipe import Recipe
from diffusionlens.material import ProbedPicture
from diffusionlens.models.backbone import Backbone
from diffusionlens.results import Row


@dataclass(frozen=True)
class ProbeSettings:
    """What to probe and how. `kinds`: token kinds; `seeds`: how many trainings; `cache`: a directory for tokens that later
    runs find again, or None for a temporary one in `room`."""

    task: str
    preset: str
    recipe: Recipe
    kinds: tuple[str, ...]
    layers: str = "all"
    seeds: int = 3
    size: tuple[int, int] | None = None
    batch_size: int | None = None
    device: str = "auto"
    workers: int = 0
    seed: int = 0
    cache: Path | None = None
    room: Path | None = None
    heads: Path | None = None
    """A file of trained heads to score in place of training."""
    given: frozenset[str] = frozenset()
    """The settings of the recipe that were asked for by name."""


@dataclass
class ModelProbe:
    """One model's probe: rows, per-picture values, what it took."""

    backbone: Backbone
    layers: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    """Token kinds that were asked for, and that trained heads have."""
    rows: list[Row] = field(default_factory=list)
    per_image: list[pd.DataFrame] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    heads: dict[tuple[int, int], LayerHeads] = field(default_factory=dict)
    """(layer, seed) -> the trained heads at their chosen rates; in the first process those of all."""
    head_facts: dict[str, Any] = field(default_factory=dict)
    shown: list[ProbedPicture] = field(default_factory=list)


@dataclass
class Found:
    """What one process has found of a model: its own layers' scores of the test pictures `names`, chosen rates and heads; what
    went through the model; `info` is what the manifest says of the data."""

    names: list[str]
    info: dict[str, Any]
    facts: dict[str, Any]
    digest: str
    scored: list[tuple[int, Scored, LayerScores]] = field(default_factory=list)
    rates: dict[int, dict[str, float]] = field(default_factory=dict)
    heads: dict[tuple[int, int], LayerHeads] = field(default_factory=dict)
    shown: list[ProbedPicture] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    """What the layers of this process lack."""
