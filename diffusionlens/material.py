"""What figures need beside the table: sample pictures and the maps of a model on them, as plain arrays."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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
class ModelMaterial:
    """One model's maps on `pictures`: layer -> score_maps [P,h,w] (cosine with the query, absent without PiB) and
    pca_maps uint8 [P,h,w,3]; layer -> norm histogram."""

    model: str
    pictures: list[SamplePicture]
    score_maps: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    pca_maps: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    norm_histograms: dict[int, NormHistogram] = field(default_factory=dict)
