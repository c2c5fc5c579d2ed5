"""What figures need beside the table: sample pictures and the maps of a model on them, as plain arrays."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffusionlens.explorer.packed import ExploredModel


@dataclass(frozen=True)
class SamplePicture:
    """A picture as a model saw it: `image` uint8 [H,W,3], `boxes` [K,4] XYXY pixels."""

    name: str
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    label: str | None = None


@dataclass(frozen=True)
class NormHistogram:
    """Patch norms of one layer: `counts` in bins `edges` (evenly spaced in log norm), and rule -> threshold."""

    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    thresholds: dict[str, float]


@dataclass(frozen=True)
class InterventionPicture:
    """What was done to a picture: `image`, `erased` and `swapped` uint8 [H,W,3] (None where that was not done), `boxes` [K,4]
    XYXY pixels, `background` bool [h,w] the patches that are probed."""

    name: str
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    erased: NDArray[np.uint8] | None
    swapped: NDArray[np.uint8] | None
    background: NDArray[np.bool_]


@dataclass(frozen=True)
class ProvenanceMap:
    """Where one patch (row, column; `patch_size` in pixels) has its likeness to CLS from: `pixels` `|attribution|` [H,W]."""

    name: str
    layer: int
    kind: str
    patch: tuple[int, int]
    patch_size: tuple[int, int]
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    pixels: NDArray[np.float32]


@dataclass(frozen=True)
class DiscoveredPicture:
    """A picture with its annotated `boxes` [K,4] and the one box each of `lost` and `tokencut` [4], XYXY pixels."""

    name: str
    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    lost: NDArray[np.float32]
    tokencut: NDArray[np.float32]


@dataclass(frozen=True)
class ProbedPicture:
    """A test picture with what heads on layer `layer` say of it: `image` uint8 [H,W,3]; `truth` and, by token kind, `predicted`
    [H,W]: places in `classes` (255 is ignored), or, without classes, metres (NaN is no reading)."""

    name: str
    layer: int
    image: NDArray[np.uint8]
    truth: NDArray[Any]
    predicted: dict[str, NDArray[Any]]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelMaterial:
    """One model's maps on `pictures`: layer -> score_maps [P,h,w] (cosine with the query, absent without PiB) and
    pca_maps uint8 [P,h,w,3]; layer -> norm histogram; changed pictures, attribution maps, what heads predict; what the
    token explorer shows."""

    model: str
    pictures: list[SamplePicture]
    score_maps: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    pca_maps: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    norm_histograms: dict[int, NormHistogram] = field(default_factory=dict)
    interventions: list[InterventionPicture] = field(default_factory=list)
    provenance_maps: list[ProvenanceMap] = field(default_factory=list)
    discovered: list[DiscoveredPicture] = field(default_factory=list)
    probed: list[ProbedPicture] = field(default_factory=list)
    explored: ExploredModel | None = None
