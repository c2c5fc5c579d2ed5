"""How a position table is resized, by the rule of the family that a checkpoint comes from.

The rules differ enough to make another network of a checkpoint: for 14 -> 6 rows, timm's antialiased rule is some
30 % away from DINO's own in relative L2.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.errors import InputError

PositionRule = Literal["timm", "dino", "bicubic"]
"""timm: bicubic to the exact grid, antialiased (also DINOv2's models with registers). dino: bicubic by the scale factor
(target + 0.1) / source, no antialiasing (DINO, and DINOv2 without registers). bicubic: bicubic to the exact grid, no
antialiasing (Hugging Face)."""

POSITION_RULES: tuple[str, ...] = get_args(PositionRule)

_DINO_OFFSET = 0.1  # both codes add it against rounding down of the output size; it shifts the sampled places


def resize_positions(table: Tensor, native: tuple[int, int], grid: tuple[int, int], rule: PositionRule) -> Tensor:
    """The position table for another grid of patches; entries of prefix tokens are kept.

    Args:
        table: [1,P+h*w,D], P prefix entries first, then the native grid row by row.
        native: (h, w) of the table.
        grid: rows and columns wanted.

    Returns:
        [1,P+rows*columns,D] in the type of `table`; `table` itself when the grid is the native one.
    """
    if grid == native:
        return table
    prefix = table.shape[1] - native[0] * native[1]
    places = table[:, prefix:].float().unflatten(1, native).permute(0, 3, 1, 2)
    if rule == "dino":
        factors = tuple((wanted + _DINO_OFFSET) / had for wanted, had in zip(grid, native, strict=True))
        resized = functional.interpolate(places, scale_factor=factors, mode="bicubic")
    else:
        resized = functional.interpolate(places, size=grid, mode="bicubic", antialias=rule == "timm")
    flat = resized.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
    assert flat.shape[1] == grid[0] * grid[1]
    return torch.cat([table[:, :prefix], flat], 1)


def refuse_uneven(what: str, size: tuple[int, int], patch_size: tuple[int, int], whose: str) -> None:
    """Refuses a picture size (H, W) that the patch size does not divide, naming the nearest ones that it does.

    Raises:
        InputError: as said.
    """
    for length, patch in zip(size, patch_size, strict=True):
        if length < patch or length % patch:
            near = sorted({max(length // patch, 1) * patch, (length // patch + 1) * patch})
            raise InputError(
                f"{what} does not fit {whose}: {length} is not a multiple of its patch size {patch}; use "
                f"{' or '.join(map(str, near))}"
            )
