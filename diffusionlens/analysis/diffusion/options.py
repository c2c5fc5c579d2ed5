"""What can be set of `diffusion`."""

from typing import Literal

from pydantic import Field

from diffusionlens.analysis.diagnostic import Options
from diffusionlens.analysis.diffusion.erase import Fill
from diffusionlens.analysis.diffusion.provenance import Method
from diffusionlens.capture import Stream


class DiffusionOptions(Options):
    """`fill`: how erased boxes are filled (see `erase`). `tokens`: normed or raw. `folds` of the probe's cross-validation.
    `leakage_pictures`: at most so many, evenly spaced (two tokens a layer are kept of each). `spread`: whether to swap objects.
    `provenance`: the method, or none; of `provenance_pictures` evenly spaced pictures, with `provenance_patches` background and
    as many object patches each, at the last layer or at all that are reported; `steps` of Integrated Gradients."""

    fill: Fill = "mean"
    tokens: Stream = "normed"
    leakage: bool = True
    folds: int = Field(default=5, ge=2, le=20)
    leakage_pictures: int = Field(default=5_000, ge=10)
    spread: bool = True
    provenance: Method = "integrated_gradients"
    provenance_pictures: int = Field(default=16, ge=1)
    provenance_patches: int = Field(default=1, ge=1)
    provenance_layers: Literal["last", "all"] = "last"
    steps: int = Field(default=32, ge=2, le=1024)
