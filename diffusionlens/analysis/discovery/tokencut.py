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


def tokencut_box(features: Floats, grid: tuple[int, int], threshold: float = THRESHOLD) -> tuple[int, int, int, int]:
    """The box (rows from, columns from, rows to, columns to; ends exclusive) in patches.

    Where every cosine lies above the threshold (or none does) there is nothing to cut, and the box is the whole picture; the
    released code's box is arbitrary there.

    Args:
        features: [h*w, D]: keys of the last layer, heads joined; normalised here.
    """
    edges = _edges(features, threshold)
    off_diagonal = edges[~np.eye(len(edges), dtype=bool)]
    if len(off_diagonal) == 0 or off_diagonal.min() == off_diagonal.max():
        return 0, 0, *grid
    vector = _second_eigenvector(edges)
    foreground = vector > vector.mean()
    seed = int(np.abs(vector).argmax())
    if not foreground[seed]:
        foreground = ~foreground
    return component_box(foreground.reshape(grid), seed)


def _edges(features: Floats, threshold: float) -> Floats:
    """1 where the cosine exceeds the threshold and 1e-5 elsewhere, [h*w, h*w]."""
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(norm > 0, norm, 1)
    return np.where(unit @ unit.T > threshold, 1.0, _WEAK)


def _second_eigenvector(edges: Floats) -> Floats:
    """Of (D - A) y = lambda D y, [h*w]."""
    degree = edges.sum(1)
    _, vectors = eigh(np.diag(degree) - edges, np.diag(degree), subset_by_index=[1, 1])
    return vectors[:, 0]
