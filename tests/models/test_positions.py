"""Every rule of resizing positions, against cubic convolution written out in float64."""

import numpy as np
import pytest
import torch

from diffusionlens.models.positions import PositionRule, resize_positions


def cubic(distance: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.75, which torch's bicubic uses without antialiasing; a = -0.5 with it, as PIL."""
    return keys(distance, -0.75)


def keys(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def matrix(had: int, wanted: int, rule: PositionRule) -> np.ndarray:
    """Weights [wanted,had] along one axis."""
    step = had / (wanted + 0.1) if rule == "dino" else had / wanted
    places = (np.arange(wanted) + 0.5) * step - 0.5
    if rule == "timm":  # antialiased: the kernel is stretched when shrinking, cut at the border and normalised
        stretch = max(step, 1.0)
        weights = keys((np.arange(had)[None] - places[:, None]) / stretch, -0.5)
        return weights / weights.sum(1, keepdims=True)
    weights = np.zeros((wanted, had))
    for row, place in enumerate(places):
        for tap in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            weights[row, min(max(tap, 0), had - 1)] += cubic(np.array(place - tap))
    return weights


@pytest.mark.parametrize("rule", ["timm", "dino", "bicubic"])
@pytest.mark.parametrize(
    ("native", "grid"), [((14, 14), (6, 6)), ((14, 14), (20, 20)), ((5, 7), (8, 3)), ((6, 6), (6, 9))]
)
def test_rules(rule: PositionRule, native: tuple[int, int], grid: tuple[int, int]) -> None:
    table = torch.randn(1, 2 + native[0] * native[1], 3, generator=torch.Generator().manual_seed(0))
    resized = resize_positions(table, native, grid, rule)
    places = table[0, 2:].double().numpy().reshape(*native, 3)
    rows, columns = matrix(native[0], grid[0], rule), matrix(native[1], grid[1], rule)
    expected = np.einsum("ri,cj,ijd->rcd", rows, columns, places).reshape(-1, 3)
    np.testing.assert_allclose(resized[0, 2:].numpy(), expected, atol=2e-5)
    torch.testing.assert_close(resized[:, :2], table[:, :2])


def test_the_native_grid_is_left_alone() -> None:
    table = torch.randn(1, 26, 4)
    assert resize_positions(table, (5, 5), (5, 5), "dino") is table
