"""Weighted nearest neighbours in chunks, as DINO evaluates features."""

from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 1024  # queries at a time


def knn_predict(
    queries: Tensor, bank: Tensor, labels: Tensor, k: Sequence[int], temperature: float, classes: int
) -> Tensor:
    """The class with the most votes among the nearest of the bank, for every number of neighbours.

    A neighbour votes with exp(cosine / temperature); where k is larger than the bank, all of it votes. The lowest class wins a
    tie. Source: DINO, eval_knn.py.

    Args:
        queries: [Q,D], bank: [N,D], both of length 1. labels: [N] int64.

    Returns:
        [len(k),Q] int64.
    """
    found = []
    for start in range(0, len(queries), _CHUNK):
        cosine = queries[start : start + _CHUNK] @ bank.T
        best, places = cosine.topk(min(max(k), len(bank)), dim=1)
        weights = ((best - best[:, :1]) / temperature).exp()  # relative to the nearest: the same order, and no overflow
        votes = labels[places]
        rows = []
        for count in k:
            total = weights.new_zeros(len(best), classes)
            total.scatter_add_(1, votes[:, :count], weights[:, :count])
            rows.append(total.argmax(1))
        found.append(torch.stack(rows))
    return torch.cat(found, 1) if found else labels.new_zeros(len(k), 0)
