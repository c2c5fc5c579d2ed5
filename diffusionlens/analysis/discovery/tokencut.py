"""TokenCut: the normalised cut of the graph of like patches, by its second eigenvector.

Source: Wang et al., "Self-Supervised Transformers for Unsupervised Object Discovery using Normalized Cut" (CVPR 2022, arXiv
2202.11539) and its released code.
"""

import numpy as np
from scipy.linalg import eigh

from diffusionlens.analysis.discovery.lost import component_box
from diffusionlens.analysis.intervals import Floats

THRESHOLD = 0.2  # of the cosine, the paper's
_WEAK = 1e-5  # weight of an edge below it, the paper's
_TIE = 1e-6  # patches with the same neighbours have the same entry but for rounding; the first of them is the seed


def tokencut_box(features: Floats, grid: tuple[int, int], threshold: float = THRESHOLD) -> tuple[int, int, int, int]:
    """The box (rows from, columns from, rows to, columns to; ends exclusive) in patches.

    Args:
        features: [h*w, D]: keys of the last layer, heads joined; normalised here.
    """
    vector = second_eigenvector(features, threshold)
    foreground = vector > vector.mean()
    size = np.abs(vector)
    seed = int((size >= size.max() * (1 - _TIE)).argmax())
    if not foreground[seed]:
        foreground = ~foreground
    return component_box(foreground.reshape(grid), seed)


def second_eigenvector(features: Floats, threshold: float) -> Floats:
    """Of (D - A) y = lambda D y, with A 1 where the cosine exceeds the threshold and 1e-5 elsewhere, [h*w]."""
    edges = np.where(_cosines(features) > threshold, 1.0, _WEAK)
    degree = edges.sum(1)
    _, vectors = eigh(np.diag(degree) - edges, np.diag(degree), subset_by_index=[1, 1])
    return vectors[:, 0]


def all_alike(features: Floats, threshold: float) -> bool:
    """Whether every two patches have an edge. Softmax and entmax ignore a vector that is added to all keys, so that nothing
    in training keeps keys from being so."""
    return bool((_cosines(features) > threshold).all())


def _cosines(features: Floats) -> Floats:
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(norm > 0, norm, 1)
    return unit @ unit.T
