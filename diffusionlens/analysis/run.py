"""What a measurement is made with and what it holds: settings, one model's run, the outcome."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from diffusionlens.analysis.diagnostic import Context, Diagnostic, LeftOut, Options
from diffusionlens.data.batches import Skipped
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.material import ModelMaterial, SamplePicture
from diffusionlens.models.backbone import Backbone
from diffusionlens.per_image import PerImage


@dataclass(frozen=True)
class Settings:
    """How to measure. `layers`: "all", "last" or numbers; `images`: at most so many, evenly spaced; `size`: (H, W) or None
    for the model's default."""

    analyses: tuple[str, ...]
    options: dict[str, Options]
    layers: str = "all"
    images: int | None = None
    size: tuple[int, int] | None = None
    fit: Fit = "crop"
    batch_size: int | None = None
    device: str = "auto"
    workers: int = 0
    seed: int = 0


@dataclass
class Measurement:
    """What came out: the tidy table, per-picture values, material for figures (one entry a model), the manifest."""

    results: pd.DataFrame
    pictures: PerImage
    material: list[ModelMaterial]
    manifest: dict[str, Any]

    @property
    def per_image(self) -> pd.DataFrame:
        """The per-picture values as the table that is written; made anew each time, and large for many pictures."""
        return self.pictures.frame()


@dataclass
class Run:
    """One model on the pictures: its diagnostics and what was seen on the way."""

    backbone: Backbone
    context: Context
    diagnostics: list[Diagnostic]
    left_out: list[LeftOut]
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    samples: dict[int, SamplePicture] = field(default_factory=dict)

    def find(self, kind: type[Any]) -> Any:
        """The run's diagnostic of this kind, or None."""
        return next((diagnostic for diagnostic in self.diagnostics if isinstance(diagnostic, kind)), None)
