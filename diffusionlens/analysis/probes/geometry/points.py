"""Tokens between the centres of the grid: bilinear mixtures at chosen places, as bilinear upsampling would make them."""

import torch
from torch import Tensor
from torch.nn import functional


def mix_at(grid: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The tokens at chosen places, mixed bilinearly from the four around; the border's tokens reach to the edge.

    Args:
        grid: [B,h,w,D].
        rows, columns: [B,M], shares of the picture's height and width in 0..1; a patch's centre lies at (row + 0.5) / h.

    Returns:
        [B,M,D], what `interpolate(mode="bilinear", align_corners=False)` has at those places.
    """
    batch, height, width, channels = grid.shape
    top, bottom, down = _between(rows, height)
    left, right, across = _between(columns, width)
    first = torch.arange(batch, device=grid.device)[:, None] * (height * width)
    places = torch.stack([first + row * width + column for row in (top, bottom) for column in (left, right)], -1)
    weights = torch.stack([a * b for a in (1 - down, down) for b in (1 - across, across)], -1)
    mixed = functional.embedding_bag(
        places.view(-1, 4),
        grid.reshape(-1, channels),
        per_sample_weights=weights.view(-1, 4).to(grid.dtype),
        mode="sum",
    )
    return mixed.view(batch, rows.shape[1], channels)


def _between(share: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    place = (share * count - 0.5).clamp(0, count - 1)
    low = place.floor().long()
    return low, (low + 1).clamp(max=count - 1), place - low
