"""What a probe is made with, and one model's probe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.probes.heads import LayerHeads
from diffusionlens.analysis.probes.recipe import Recipe
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


@dataclass
class ModelProbe:
    """One model's probe: rows, per-picture values, what it took."""

    backbone: Backbone
    layers: tuple[int, ...]
    rows: list[Row] = field(default_factory=list)
    per_image: list[pd.DataFrame] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    heads: dict[tuple[int, int], LayerHeads] = field(default_factory=dict)
    """(layer, seed) -> the trained heads at their chosen rates; in the first process those of all."""
    head_facts: dict[str, Any] = field(default_factory=dict)
