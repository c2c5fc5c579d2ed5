"""A linear probe that reads labels from tokens: ridge regression onto one-hot labels, the largest output wins.

Why ridge: its solution is closed, so that it is exact, the same every time, and all strengths of regularisation come from
one decomposition, with their leave-one-out errors (Hastie, Tibshirani, Friedman, The Elements of Statistical Learning,
section 7.10.1 and equation 7.64).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import svd
from sklearn.model_selection import StratifiedKFold

from diffusionlens.analysis.intervals import Floats

Ints = NDArray[np.int64]

STRENGTHS = 10.0 ** np.arange(-3.0, 3.5, 0.5)
"""Of regularisation, relative to the number of pictures; features are standardised."""


@dataclass(frozen=True)
class _Side:
    """Training features as left @ diag(singular) @ right, the targets in that basis, and how to bring in new features."""

    mean: Floats
    scale: Floats
    left: Floats
    singular: Floats
    right: Floats
    projected: Floats


def out_of_fold(sides: Sequence[Floats], labels: Ints, folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Whether each picture's label is read correctly by a probe that has not seen the picture, for each side.

    The sides are features of the same pictures. They share folds, probe and strength of regularisation, which is chosen
    on the training pictures alone, by the leave-one-out squared error summed over the sides (the strongest of equals).

    Args:
        sides: each [pictures, D].
        labels: [pictures], every label at least `folds` times.

    Returns:
        For each side, bool [pictures].
    """
    _, classes = np.unique(labels, return_inverse=True)
    targets = np.eye(classes.max() + 1)[classes]
    correct = [np.zeros(len(labels), bool) for _ in sides]
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for train, test in splitter.split(np.zeros(len(labels)), classes):
        centre = targets[train].mean(0)
        fitted = [_decompose(side[train].astype(np.float64), targets[train] - centre) for side in sides]
        strengths = STRENGTHS * len(train)
        errors = [
            sum(_left_out_error(one, targets[train] - centre, strength) for one in fitted) for strength in strengths
        ]
        strength = strengths[len(errors) - 1 - int(np.argmin(errors[::-1]))]
        for own, one, side in zip(correct, fitted, sides, strict=True):
            shrunk = (one.singular / (one.singular**2 + strength))[:, None] * one.projected
            outputs = (side[test].astype(np.float64) - one.mean) / one.scale @ (one.right.T @ shrunk) + centre
            own[test] = outputs.argmax(1) == classes[test]
    return correct


def _decompose(features: Floats, targets: Floats) -> _Side:
    mean, scale = features.mean(0), features.std(0)
    # What does not vary (but for rounding) says nothing, and must not be blown up.
    scale = np.where(scale > 1e-6 * np.abs(features).max(initial=1e-30), scale, np.inf)
    left, singular, right = svd((features - mean) / scale, full_matrices=False, check_finite=False)
    return _Side(mean, scale, left, singular, right, left.T @ targets)


def _left_out_error(side: _Side, targets: Floats, strength: float) -> float:
    """Mean squared error of leaving out one picture at a time; the mean takes one degree of freedom."""
    shrinkage = side.singular**2 / (side.singular**2 + strength)
    residual = targets - side.left @ (shrinkage[:, None] * side.projected)
    leverage = (side.left**2) @ shrinkage + 1 / len(targets)
    return float(np.mean((residual / (1 - leverage).clip(1e-6)[:, None]) ** 2))
