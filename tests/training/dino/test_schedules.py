"""Schedules against DINO's arrays, written with NumPy from the published description, and against closed forms."""

import numpy as np
import pytest

from diffusionlens.errors import InputError
from diffusionlens.training.dino.schedules import cosine, linear, warmup_cosine


def dino_array(base: float, final: float, total: int, warmup: int) -> np.ndarray:
    """One value a step: a ramp from 0 by linspace, then half a cosine over the rest."""
    rest = np.arange(total - warmup) / max(total - warmup, 1)
    return np.concatenate([np.linspace(0, base, warmup), final + (base - final) * (1 + np.cos(np.pi * rest)) / 2])


@pytest.mark.parametrize(("total", "warmup"), [(250, 10), (250, 0), (7, 1), (10, 10), (2, 1)])
def test_learning_rate(total: int, warmup: int) -> None:
    ours = [warmup_cosine(step, total, warmup, 5e-4, 1e-6) for step in range(total)]
    np.testing.assert_allclose(ours, dino_array(5e-4, 1e-6, total, warmup), rtol=1e-12, atol=1e-18)


def test_momentum_and_decay() -> None:
    np.testing.assert_allclose([cosine(step, 97, 0.996, 1) for step in range(97)], dino_array(0.996, 1, 97, 0))
    assert cosine(40, 80, 0.04, 0.4) == pytest.approx(0.22)  # half-way is the middle
    assert cosine(97, 97, 0.996, 1) == cosine(200, 97, 0.996, 1) == 1


@pytest.mark.parametrize("warmup", [0, 1, 30, 50])
def test_temperature_by_epoch(warmup: int) -> None:
    per_epoch = np.concatenate([np.linspace(0.04, 0.07, warmup), np.full(50 - warmup, 0.07)])
    ours = [linear(step // 11, warmup, 0.04, 0.07) for step in range(11 * 50)]
    np.testing.assert_allclose(ours, np.repeat(per_epoch, 11))


def test_ramps() -> None:
    assert [linear(step, 5, 1, 3) for step in range(7)] == [1, 1.5, 2, 2.5, 3, 3, 3]
    assert [linear(step, 1, 1, 3) for step in range(2)] == [1, 3]


def test_a_ramp_longer_than_the_run_explains_itself() -> None:
    with pytest.raises(InputError, match=r"warm-up of the learning rate takes 11 steps, the whole run 10"):
        warmup_cosine(0, 10, 11, 1, 0)
