"""Boxes as annotations give them, brought to what can be measured; what can't is left out and said."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch


@dataclass
class BoxList:
    """Collects the boxes of one picture of `width` x `height` pixels."""

    width: int
    height: int
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)
    category: list[int] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    difficult: list[bool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        box: Sequence[float],
        category: int,
        written: str,
        *,
        crowd: bool = False,
        difficult: bool = False,
        what: str = "object",
    ) -> None:
        """Adds an XYXY box with exclusive ends, clipped to the picture; notes it instead when nothing is left of it.

        Args:
            written: the box in the words and numbers of its file, so that it is found there.
        """
        x0, y0, x1, y1 = box
        if not all(isfinite(value) for value in box):
            self.notes.append(f"{what}: the box {written} is not finite")
            return
        if x1 <= x0 or y1 <= y0:
            self.notes.append(f"{what}: the box {written} has no area")
            return
        clipped = (max(x0, 0.0), max(y0, 0.0), min(x1, float(self.width)), min(y1, float(self.height)))
        if clipped[2] <= clipped[0] or clipped[3] <= clipped[1]:
            self.notes.append(f"{what}: the box {written} lies outside the picture ({self.width}x{self.height})")
            return
        self.boxes.append(clipped)
        self.category.append(category)
        self.crowd.append(crowd)
        self.difficult.append(difficult)

    @property
    def only_category(self) -> int | None:
        """The category when all counted objects share one."""
        counted = [
            c for c, crowd, hard in zip(self.category, self.crowd, self.difficult, strict=True) if not (crowd or hard)
        ]
        return counted[0] if counted and len(set(counted)) == 1 else None

    def fields(self) -> dict[str, torch.Tensor | tuple[str, ...]]:
        """Keyword arguments for `Picture`."""
        return {
            "boxes": torch.tensor(self.boxes, dtype=torch.float32).reshape(-1, 4),
            "category": torch.tensor(self.category, dtype=torch.int64),
            "crowd": torch.tensor(self.crowd, dtype=torch.bool),
            "difficult": torch.tensor(self.difficult, dtype=torch.bool),
            "notes": tuple(self.notes),
        }
