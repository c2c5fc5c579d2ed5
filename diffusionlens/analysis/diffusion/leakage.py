"""`leakage`: what background patches know of the picture's label only because the object is in the picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column
from diffusionlens.analysis.diffusion.probe import Ints, out_of_fold
from diffusionlens.analysis.intervals import Floats
from diffusionlens.capture import Stream, Trace


def mean_background(
    trace: Trace, layers: Sequence[int], masks: Tensor, places: Sequence[int], stream: Stream
) -> Tensor:
    """Mean token of the background patches, [b,L,D] on the CPU.

    Args:
        masks: bool [b,h,w], at least one patch each.
        places: the b pictures of the trace.
    """
    device = trace.raw[layers[0]].device
    weight = (masks / masks.sum((1, 2), keepdim=True)).flatten(1).to(device)
    means = [weight[:, None] @ trace.tokens(layer, stream).flat_patches[list(places)] for layer in layers]
    return torch.cat(means, 1).cpu()


@dataclass(frozen=True)
class Readings:
    """Whether the probe read the label from the full and from the erased picture, bool [pictures, layers], of the pictures
    `places` of those given; `rare` pictures had a label that too few others have. `same` [layers]: all tokens are the same
    on both sides, but for rounding."""

    full: NDArray[np.bool_]
    erased: NDArray[np.bool_]
    places: Ints
    chance: float
    rare: int
    same: NDArray[np.bool_]


def read_labels(full: Tensor, erased: Tensor, labels: Ints, folds: int, seed: int) -> Readings:
    """Probes every layer's mean background tokens, full and erased.

    A label that fewer than `folds` pictures have can't be both learned and tested, and is left out.

    Args:
        full, erased: [pictures, L, D], in the order of the data set.
        labels: [pictures].
    """
    values, counts = np.unique(labels, return_counts=True)
    places = np.flatnonzero(np.isin(labels, values[counts >= folds]))
    kept = labels[places]
    layers = full.shape[1]
    shape = (len(places), layers)
    readings = Readings(
        np.zeros(shape, bool),
        np.zeros(shape, bool),
        places,
        float(np.unique(kept, return_counts=True)[1].max() / len(kept)) if len(kept) else 0.0,
        len(labels) - len(places),
        _same(full[places], erased[places]),
    )
    if len(np.unique(kept)) < 2:
        return Readings(readings.full[:0], readings.erased[:0], places[:0], 0.0, len(labels), readings.same)
    with threadpool_limits(1):
        for layer in range(layers):
            sides = [side[places, layer].numpy() for side in (full, erased)]
            readings.full[:, layer], readings.erased[:, layer] = out_of_fold(sides, kept, folds, seed)
    return readings


def _same(full: Tensor, erased: Tensor) -> NDArray[np.bool_]:
    """Whether every token is the same but for rounding, [layers], for tokens [pictures, layers, D]."""
    if len(full) == 0:
        return np.zeros(full.shape[1], bool)
    apart = (full - erased).abs().amax((0, 2))
    return (apart <= 1e-5 * full.abs().amax((0, 2))).numpy()


def leakage_series(
    readings: Readings, layers: Sequence[int], reported: Sequence[int], rows: Ints, pictures: int
) -> tuple[list[Column], Floats, Floats]:
    """Columns, numerator and denominator [pictures, columns] of `METRICS`, paired by picture.

    Args:
        layers: of `readings`, layer 0 among them.
        rows: the row of each of the readings' pictures among all.
    """
    columns, values = [], []
    embedding = list(layers).index(0)
    full, erased = readings.full.astype(float), readings.erased.astype(float)
    drop = full - erased
    for layer in reported:
        at = list(layers).index(layer)
        columns += [
            Column("leakage_full", layer, kind="proportion", scale=100.0),
            Column("leakage_erased", layer, kind="proportion", scale=100.0),
            Column("leakage", layer, scale=100.0),
            Column("leakage_depth", layer, scale=100.0),
        ]
        values += [full[:, at], erased[:, at], drop[:, at], drop[:, at] - drop[:, embedding]]
    numerator, denominator = np.zeros((2, pictures, len(columns)))
    numerator[rows] = np.stack(values, 1)
    denominator[rows] = 1
    return columns, numerator, denominator
