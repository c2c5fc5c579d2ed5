"""The probe against scikit-learn's ridge regression, and its leave-one-out error against really leaving out."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import StratifiedKFold

from diffusionlens.analysis.diffusion import probe


def planted(pictures: int = 36, width: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(pictures) % 3
    return rng.normal(size=(3, width))[labels] + 1.5 * rng.normal(size=(pictures, width)), labels


def test_left_out_errors_are_those_of_leaving_out() -> None:
    features, labels = planted(20, 6)
    targets = np.eye(3)[labels] - np.eye(3)[labels].mean(0)
    side = probe._decompose(features, targets)
    scaled = (features - side.mean) / side.scale
    errors = []
    for left in range(20):
        kept = np.arange(20) != left
        fitted = Ridge(alpha=7.0).fit(scaled[kept], targets[kept])
        errors.append((fitted.predict(scaled[[left]])[0] - targets[left]) ** 2)
    np.testing.assert_allclose(probe._left_out_error(side, targets, 7.0), np.mean(errors), rtol=1e-9)


@pytest.mark.slow
def test_predictions_are_those_of_scikit_learn() -> None:
    features, labels = planted()
    found = probe.out_of_fold([features], labels, 5, 0)[0]
    expected = np.zeros(36, bool)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(features, labels):
        scale = features[train].std(0)
        scaled = (features - features[train].mean(0)) / scale
        targets = np.eye(3)[labels]
        best, least = None, np.inf
        for strength in probe.STRENGTHS[::-1] * len(train):
            errors = []
            for left in train:
                kept = train[train != left]
                fitted = Ridge(alpha=strength).fit(scaled[kept], targets[kept])
                errors.append(np.mean((fitted.predict(scaled[[left]])[0] - targets[left]) ** 2))
            if np.mean(errors) < least:
                best, least = strength, np.mean(errors)
        fitted = Ridge(alpha=best).fit(scaled[train], targets[train])
        expected[test] = fitted.predict(scaled[test]).argmax(1) == labels[test]
    np.testing.assert_array_equal(found, expected)
    assert 0.5 < found.mean() < 1


def test_features_that_do_not_vary_say_nothing() -> None:
    labels = np.arange(40) % 4
    flat = np.ones((40, 5)) * 1e4 + 1e-4 * np.random.default_rng(0).normal(size=(40, 5))
    assert probe.out_of_fold([flat], labels, 5, 0)[0].mean() <= 0.25
