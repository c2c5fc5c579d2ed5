"""Windows against those of torchvision's RandomResizedCrop."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop

from diffusionlens.training.views.windows import UNIFORMS, draw_windows


def drawn(n: int, scale: tuple[float, float], width: int, height: int) -> NDArray[np.int64]:
    uniforms = np.random.default_rng(0).random((n, UNIFORMS), dtype=np.float32)
    return draw_windows(uniforms, np.array([scale] * n), width, height)


def by_torchvision(n: int, scale: tuple[float, float], width: int, height: int) -> NDArray[np.int64]:
    torch.manual_seed(0)
    picture = Image.new("L", (width, height))
    found = [RandomResizedCrop.get_params(picture, list(scale), [3 / 4, 4 / 3]) for _ in range(n)]
    return np.array([(left, top, left + wide, top + high) for top, left, high, wide in found])


@pytest.mark.parametrize("scale", [(0.4, 1.0), (0.05, 0.4), (1.0, 1.0)])
@pytest.mark.parametrize("size", [(256, 192), (64, 64), (90, 300)])
def test_the_distribution_is_that_of_torchvision(scale: tuple[float, float], size: tuple[int, int]) -> None:
    """Narrow pictures, where few windows fit, and the last resort, which many of the largest come to, included."""
    ours, theirs = drawn(3000, scale, *size), by_torchvision(1000, scale, *size)
    assert (ours >= 0).all()
    assert (ours[:, 2:] <= size).all()
    assert (ours[:, 2:] > ours[:, :2]).all()
    for law in (
        lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        lambda b: (b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]),
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 2],
        lambda b: b[:, 3],
    ):
        assert ks_2samp(law(ours), law(theirs)).pvalue > 1e-3


@pytest.mark.parametrize("size", [(3, 400), (400, 3), (1, 1), (5, 31), (64, 2)])
def test_the_last_resort(size: tuple[int, int]) -> None:
    assert np.array_equal(drawn(1, (1.0, 1.0), *size), by_torchvision(1, (1.0, 1.0), *size))
