"""Dense representation Structure Estimator: do dense tokens fall into tight, separate, high-dimensional clusters?

Source: Dai et al., NeurIPS 2025 (arXiv 2510.17299). The paper and the code released with it differ; both forms are here.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from diffusionlens.analysis.similarity.rank import effective_rank, singular_values

Floats = NDArray[np.float64]

IMAGE_CLUSTERS, GROUP_CLUSTERS, GROUP = 3, 24, 8
_ITERATIONS = 20  # as in the released code


@dataclass(frozen=True)
class DseParts:
    """DSE = inter - intra + weight * dim. The paper sets the weight to std(inter - intra) / std(dim) over the checkpoints
    that are compared, so that a single checkpoint has none of its own."""

    inter: float
    intra: float
    dim: float

    def total(self, weight: float) -> float:
        return self.inter - self.intra + weight * self.dim


def dse_paper(tokens: Floats, seed: int) -> DseParts:
    """The paper's form: tokens [n,D] in 24 k-means clusters.

    inter: mean squared distance of a token to the nearest centroid that is not its own. intra: mean over clusters of the sum of
    singular values of the centred cluster, divided by its size. dim: effective rank of the tokens.
    """
    labels, centroids = _clusters(tokens, GROUP_CLUSTERS, seed)
    sums = [_singular_sum(tokens[labels == k]) / max((labels == k).sum(), 1) for k in np.unique(labels)]
    inter = float(_squares_to_other_centroid(tokens, labels, centroids).mean())
    return DseParts(inter, float(np.mean(sums)), _rank(tokens))


def dse_code(pictures: Floats, seed: int) -> float:
    """The released code's form (its weight is 1): tokens [pictures,P,D].

    Distances and singular sums are divided by the mean distance to the global mean, singular sums also by
    sqrt(max(n - 1, D)) instead of n; intra is averaged over clusterings of single pictures (3 clusters) and of groups of
    eight (24); dim is the effective rank of one random token a picture, divided by its largest possible value.
    """
    flat = pictures.reshape(-1, pictures.shape[-1])
    scale = float(np.linalg.norm(flat - flat.mean(0), axis=1).mean())
    if scale == 0:
        return float("nan")
    of_pictures = [_mean_code_sum(tokens, _clusters(tokens, IMAGE_CLUSTERS, seed)[0]) for tokens in pictures]
    of_groups, inter = [], []
    for start in range(0, len(pictures), GROUP):
        tokens = pictures[start : start + GROUP].reshape(-1, pictures.shape[-1])
        labels, centroids = _clusters(tokens, GROUP_CLUSTERS, seed)
        of_groups.append(_mean_code_sum(tokens, labels))
        inter.append(np.sqrt(_squares_to_other_centroid(tokens, labels, centroids)).mean())
    rng = np.random.default_rng(seed)
    places = rng.permuted(np.tile(np.arange(pictures.shape[1]), (len(pictures), 1)), axis=1)
    shuffled = np.take_along_axis(pictures, places[..., None], axis=1)
    largest = min(len(pictures), pictures.shape[-1])
    dim = np.mean([_rank(shuffled[:, place]) / largest for place in range(pictures.shape[1])])
    return float((np.mean(inter) - (np.mean(of_groups) + np.mean(of_pictures)) / 2) / scale + dim)


def _clusters(tokens: Floats, count: int, seed: int) -> tuple[NDArray[np.int64], Floats]:
    """Labels [n] and centroids of at most `count` clusters, none of them empty."""
    with warnings.catch_warnings():
        # Fewer distinct tokens than clusters (a collapsed model) are a finding, not a fault; empty clusters go below.
        warnings.simplefilter("ignore")
        found = KMeans(min(count, len(tokens)), n_init=1, random_state=seed, max_iter=_ITERATIONS).fit(tokens)
    used, labels = np.unique(found.labels_, return_inverse=True)
    return labels, found.cluster_centers_[used]


def _squares_to_other_centroid(tokens: Floats, labels: NDArray[np.int64], centroids: Floats) -> Floats:
    """Squared distance of every token to the nearest centroid that is not its own, [n]; 0 with one cluster."""
    if len(centroids) < 2:
        return np.zeros(len(tokens))
    squares = (tokens**2).sum(1)[:, None] + (centroids**2).sum(1)[None] - 2 * tokens @ centroids.T
    squares[np.arange(len(tokens)), labels] = np.inf
    return np.maximum(squares.min(1), 0)


def _singular_sum(cluster: Floats) -> float:
    return float(singular_values(cluster - cluster.mean(0)).sum())


def _mean_code_sum(tokens: Floats, labels: NDArray[np.int64]) -> float:
    sizes = [(k, (labels == k).sum()) for k in np.unique(labels)]
    width = tokens.shape[1]
    sums = [_singular_sum(tokens[labels == k]) / np.sqrt(max(size - 1, width)) for k, size in sizes if size > 1]
    return float(np.mean(sums)) if sums else 1.0


def _rank(tokens: Floats) -> float:
    return effective_rank(singular_values(tokens))
