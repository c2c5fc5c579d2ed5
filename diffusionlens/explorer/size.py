"""How large the explorer of a page may become, before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffusionlens.explorer import attention, cosines

_BASE64 = 4 / 3
_PIXEL_BYTES = 0.5  # of a JPEG of quality 85, rather more than pictures take


@dataclass(frozen=True)
class Extent:
    """What one model puts on the page for a picture: `points` CLS and patches, `columns` keys of attention (0: none),
    `layers` and `attention_layers` how many, `pixels` of the picture."""

    points: int
    columns: int
    layers: int
    attention_layers: int
    pixels: int

    def most_bytes(self) -> float:
        """No picture of this model takes more of the page."""
        maps = self.layers * cosines.most_bytes(self.points)
        if self.columns:
            maps += self.attention_layers * attention.most_bytes(self.points, self.columns)
        return _BASE64 * (maps + _PIXEL_BYTES * self.pixels)


def most_pictures(models: Sequence[Extent], megabytes: float) -> int:
    """How many pictures surely fit into so many megabytes (of 10^6 bytes)."""
    return int(megabytes * 1e6 // sum(model.most_bytes() for model in models))
