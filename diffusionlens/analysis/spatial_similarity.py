"""How the cosine of two patches of a picture falls off with their distance on the grid.

Source of LDS, CDS, RMSC and SRSS: Singh et al., iREPA (2025), spatial metrics; distances are Manhattan distances.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_SLOPE_REACH = 8


@dataclass(frozen=True)
class DistanceProfile:
    """Mean cosine of the patch pairs at every Manhattan distance: `mean` [B,distances], `pairs` [distances] ordered pairs;
    place d holds distance d, and place 0 the patches with themselves."""

    mean: Tensor
    pairs: Tensor

    def off_diagonal(self) -> Tensor:
        """Mean cosine of different patches, [B]."""
        return self._over(slice(1, None))

    def local_minus_distant(self, grid: tuple[int, int]) -> Tensor:
        """LDS: 4-neighbours minus pairs at least half the grid apart, [B]; NaN where there are no such pairs."""
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
    """The Manhattan distances of a grid, ready to sort a Gram matrix by."""

    def __init__(self, grid: tuple[int, int]) -> None:
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        rows, columns = rows.flatten(), columns.flatten()
        distance = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
        self._bins = distance.flatten()
        self.pairs = torch.bincount(self._bins).double()

    def profile(self, gram: Tensor) -> DistanceProfile:
        """Mean of `gram` [B,P,P] by distance."""
        flat = gram.flatten(1)
        sums = torch.zeros(len(flat), len(self.pairs), device=gram.device)
        bins = self._bins.to(gram.device)
        sums.scatter_add_(1, bins.expand_as(flat), flat)
        return DistanceProfile(sums.cpu().double() / self.pairs, self.pairs)


def region_contrast(gram: Tensor, same: Tensor, other: Tensor) -> Tensor:
    """SRSS: mean cosine of pairs in the same region minus pairs across regions, [B]; NaN where either is absent.

    Args:
        gram: [B,P,P] cosines. same, other: [B,P,P], 1 for the pairs of either kind.
    """
    within = (gram * same).sum((1, 2)) / same.sum((1, 2))
    across = (gram * other).sum((1, 2)) / other.sum((1, 2))
    return within - across


def region_pairs(labels: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """Indicators [B,P,P] of the pairs (i, j), i != j, in the same and in different regions; `labels` int [B,P]."""
    counted = labels != ignore
    both = counted[:, :, None] & counted[:, None, :]
    equal = labels[:, :, None] == labels[:, None, :]
    same = both & equal & ~torch.eye(labels.shape[1], dtype=torch.bool)
    return same.float(), (both & ~equal).float()
