"""Distance profiles and region contrast against double loops in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.similarity import spatial as spatial_similarity
from diffusionlens.analysis.similarity.spatial import PatchDistances, region_contrast, region_indicators


def _unit(pictures: int, grid: tuple[int, int], width: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(pictures, grid[0] * grid[1], width, generator=generator) + 0.4
    return functional.normalize(patches, dim=-1)


def _by_distance(patches: Tensor, grid: tuple[int, int]) -> dict[int, list[float]]:
    """Cosines of all pairs i != j of one picture, by Manhattan distance."""
    tokens = patches.double().numpy()
    found: dict[int, list[float]] = {}
    for i in range(len(tokens)):
        for j in range(len(tokens)):
            if i != j:
                distance = abs(i // grid[1] - j // grid[1]) + abs(i % grid[1] - j % grid[1])
                found.setdefault(distance, []).append(float(tokens[i] @ tokens[j]))
    return found


@pytest.mark.parametrize("grid", [(4, 4), (3, 7), (10, 2), (1, 9)])
def test_profile_equals_the_loop_over_pairs(grid: tuple[int, int]) -> None:
    patches = _unit(2, grid)
    profile = PatchDistances(grid).profile(patches)
    for picture in range(2):
        pairs = _by_distance(patches[picture], grid)
        means = {distance: np.mean(values) for distance, values in pairs.items()}
        far = max((grid[0] + grid[1]) // 4, 2)
        everything = [value for values in pairs.values() for value in values]
        beyond = [value for distance, values in pairs.items() if distance >= far for value in values]
        reach = range(1, min(8, max(pairs)) + 1)
        slope = np.polyfit(list(reach), [means[d] for d in reach], 1)[0]
        assert profile.off_diagonal()[picture].item() == pytest.approx(np.mean(everything), abs=1e-6)
        assert profile.local_minus_distant(grid)[picture].item() == pytest.approx(means[1] - np.mean(beyond), abs=1e-6)
        assert profile.decay_slope()[picture].item() == pytest.approx(-slope, abs=1e-6)


def test_half_the_grid_is_seven_patches_of_fourteen() -> None:
    # Cosine 1 up to distance 6 and 0 from 7 on can't be planted; the distances themselves can.
    profile = PatchDistances((14, 14)).profile(_unit(1, (14, 14)))
    planted = profile.mean.clone()
    planted[:] = (torch.arange(planted.shape[1]) < 7).double()
    found = spatial_similarity.DistanceProfile(planted, profile.pairs).local_minus_distant((14, 14))
    assert found.item() == 1


def test_planted_slope() -> None:
    pairs = PatchDistances((14, 14)).pairs
    planted = 0.9 - 0.05 * torch.arange(len(pairs), dtype=torch.float64)[None]
    assert spatial_similarity.DistanceProfile(planted, pairs).decay_slope().item() == pytest.approx(0.05)


def test_large_batches_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = _unit(7, (5, 4))
    whole = PatchDistances((5, 4)).profile(patches).mean
    monkeypatch.setattr(spatial_similarity, "_GRAM_ELEMENTS", 3 * 20 * 20)
    torch.testing.assert_close(PatchDistances((5, 4)).profile(patches).mean, whole)


def test_a_single_patch_has_no_pairs() -> None:
    profile = PatchDistances((1, 1)).profile(_unit(2, (1, 1)))
    assert profile.off_diagonal().isnan().all()
    assert profile.local_minus_distant((1, 1)).isnan().all()
    assert profile.decay_slope().isnan().all()


def test_region_contrast_equals_the_loop_over_pairs() -> None:
    grid = (4, 5)
    patches = _unit(3, grid)
    patches[1, 7] = 0  # a zero token stays zero, and its cosine with itself is not 1
    labels = torch.randint(0, 3, (3, 20), generator=torch.Generator().manual_seed(1))
    labels[:, :4] = 255
    found = region_contrast(patches, region_indicators(labels, 255))
    for picture in range(3):
        tokens, own = patches[picture].double().numpy(), labels[picture].tolist()
        same, other = [], []
        for i in range(20):
            for j in range(20):
                if i != j and own[i] != 255 and own[j] != 255:
                    (same if own[i] == own[j] else other).append(float(tokens[i] @ tokens[j]))
        assert found[picture].item() == pytest.approx(np.mean(same) - np.mean(other), abs=1e-6)


@pytest.mark.parametrize(
    "labels",
    [[0] * 12, [255] * 12, [0] * 11 + [255], list(range(12))],
    ids=["one region", "none", "one region and some ignored", "regions of one patch"],
)
def test_region_contrast_needs_pairs_of_both_kinds(labels: list[int]) -> None:
    # Many pictures: a total that ought to be 0 is a rounding error in most of them, and must not make infinity.
    patches = _unit(200, (3, 4), width=50)
    assert region_contrast(patches, region_indicators(torch.tensor([labels] * 200), 255)).isnan().all()


def test_region_contrast_of_one_direction_a_region_is_one() -> None:
    labels = torch.tensor([[0, 0, 0, 5, 5, 9, 9, 9]])
    tokens = functional.one_hot(labels, 12).float()
    assert region_contrast(tokens, region_indicators(labels, 255)).item() == pytest.approx(1)
