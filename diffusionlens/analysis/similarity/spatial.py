"""How the cosine of two patches of a picture falls off with their distance on the grid, and across regions.

Source of LDS, CDS, RMSC and SRSS: Singh et al., iREPA (2025), spatial metrics; distances are Manhattan distances.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_SLOPE_REACH = 8
_GRAM_ELEMENTS = 4_000_000  # cosines held at a time, so that a large grid's memory does not grow with the batch


@dataclass(frozen=True)
class DistanceProfile:
    """Mean cosine of the patch pairs at every Manhattan distance: `mean` [B,distances], `pairs` [distances] ordered pairs;
    place d holds distance d, and place 0 the patches with themselves."""

    mean: Tensor
    pairs: Tensor

    def off_diagonal(self) -> Tensor:
        """Mean cosine of different patches, [B]; NaN for a single patch."""
        return self._over(slice(1, None))

    def local_minus_distant(self, grid: tuple[int, int]) -> Tensor:
        """LDS: 4-neighbours minus pairs at least half the grid (the mean of its sides) apart, [B]; NaN where there are no
        such pairs."""
        half = max((grid[0] + grid[1]) // 4, 2)
        return self._over(slice(1, 2)) - self._over(slice(half, None))

    def decay_slope(self) -> Tensor:
        """CDS: minus the least-squares slope of the mean cosine over distances 1..8, [B]; NaN for fewer than two."""
        values = self.mean[:, 1 : _SLOPE_REACH + 1]
        distance = torch.arange(1, values.shape[1] + 1, dtype=values.dtype)
        centred = distance - distance.mean()
        return -(values @ centred) / centred.square().sum()

    def _over(self, which: slice) -> Tensor:
        pairs = self.pairs[which]
        return (self.mean[:, which] * pairs).sum(1) / pairs.sum()


class PatchDistances:
    """The Manhattan distances of a grid, ready to sort cosines by."""

    def __init__(self, grid: tuple[int, int]) -> None:
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        rows, columns = rows.flatten(), columns.flatten()
        distance = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
        self._bins = distance.flatten()
        self.pairs = torch.bincount(self._bins).double()

    def profile(self, patches: Tensor) -> DistanceProfile:
        """Mean cosine by distance of unit patches [B,P,D]."""
        self._bins = self._bins.to(patches.device)
        sums = torch.cat([self._sums(part) for part in _parts(patches)])
        return DistanceProfile(sums.cpu().double() / self.pairs, self.pairs)

    def _sums(self, patches: Tensor) -> Tensor:
        cosines = (patches @ patches.transpose(1, 2)).flatten(1)
        sums = torch.zeros(len(cosines), len(self.pairs), device=cosines.device)
        return sums.scatter_add_(1, self._bins.expand_as(cosines), cosines)


def _parts(patches: Tensor) -> Iterator[Tensor]:
    step = max(1, _GRAM_ELEMENTS // patches.shape[1] ** 2)
    yield from patches.split(step)


def region_indicators(labels: Tensor, ignore: int) -> Tensor:
    """1 where a patch belongs to a region, float32 [B,regions,P], from labels int [B,P]; ignored patches are in none."""
    values, places = torch.unique(labels, return_inverse=True)
    indicators = functional.one_hot(places, len(values)).transpose(1, 2).float()
    return indicators[:, values != ignore]


def region_contrast(patches: Tensor, regions: Tensor) -> Tensor:
    """SRSS: mean cosine of pairs in the same region minus pairs across regions, [B] float64; NaN where either is absent.

    The sum of all cosines between two sets of unit tokens is the product of their sums, so that no pair is formed.

    Args:
        patches: [B,P,D] unit tokens. regions: [B,regions,P] of `region_indicators`.
    """
    sums = (regions @ patches).cpu().double()
    sizes = regions.sum(2).cpu().double()
    selves = (regions.sum(1) * patches.norm(dim=-1).square()).sum(1).cpu().double()
    own = sums.square().sum((1, 2))
    within = _mean(own - selves, (sizes * (sizes - 1)).sum(1))
    across = _mean(sums.sum(1).square().sum(1) - own, sizes.sum(1).square() - sizes.square().sum(1))
    return within - across


def _mean(total: Tensor, pairs: Tensor) -> Tensor:
    """NaN where there are no pairs; the total is rounding error there, not 0, and would make infinity."""
    return torch.where(pairs > 0, total / pairs.clamp(min=1), torch.nan)
