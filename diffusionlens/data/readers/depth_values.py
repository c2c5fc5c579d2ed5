"""From the 16-bit integers of a depth PNG to metres; no reading is NaN."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffusionlens.data.open_picture import open_stored
from diffusionlens.data.sample import UnreadablePicture

# 7-Scenes writes 65535 where the sensor saw nothing; no sensor of these data sets sees so far (65 m indoors, 256 m KITTI).
_NO_READING = (0, 65535)


@dataclass(frozen=True)
class DepthValues:
    """How a data set stores depth: `per_metre` units make a metre, 0 and 65535 are no reading.

    `rotated`: the bits are rotated by three, as SUN RGB-D stores them (read3dPoints.m of its toolbox). `limit`: larger
    depths become this many metres.
    """

    per_metre: float
    rotated: bool = False
    limit: float | None = None

    def read(self, path: Path) -> Tensor:
        """Metres, float32 [H,W].

        Raises:
            UnreadablePicture: not there, damaged, or not 16-bit integers (8 bits are a picture of a depth map; its unit is
                unknown).
        """
        stored = open_stored(path, "depth map")
        values = stored.values
        if not stored.mode.startswith("I") or values.ndim != 2:
            raise UnreadablePicture(
                str(path), f"the depth map has the mode {stored.mode}, wanted 16-bit integers (a PNG of mode I;16)"
            )
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise UnreadablePicture(str(path), "the depth map's values leave 0..65535, wanted 16-bit integers")
        values = values.astype(np.uint16)
        if self.rotated:
            values = (values >> 3) | (values << 13)
        metres = torch.from_numpy(values.astype(np.float64) / self.per_metre).float()
        if self.limit is not None:
            metres = metres.clamp(max=self.limit)
        return metres.masked_fill(torch.from_numpy(np.isin(values, _NO_READING)), torch.nan)
