"""The random crops that linear classifiers learn from: a part of the picture at the model's size, half of them mirrored."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from diffusionlens.data.sample import Picture, Sample
from diffusionlens.data.transforms.random_crops import normalised, sample_of

_TRIES = 10


@dataclass(frozen=True)
class RandomResizedCrops:
    """torchvision's RandomResizedCrop and RandomHorizontalFlip, drawn by `seed` and the place in the stream.

    A window of `scale` of the picture's area and an aspect of `ratio`, at `size` (H, W), bicubic; after ten windows that don't
    fit, the largest central one whose aspect does.
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    seed: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, picture: Picture, index: int) -> Sample:
        rng = np.random.default_rng((self.seed, index))
        box = self._box(picture.image.size, rng)
        part = np.asarray(
            picture.image.resize((self.size[1], self.size[0]), Image.Resampling.BICUBIC, box=box, reducing_gap=None)
        )
        if rng.random() < 0.5:
            part = part[:, ::-1]
        return sample_of(picture, index, normalised(part, self.size, self.mean, self.std), self.size)

    def _box(self, size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Left, top, right, bottom."""
        width, height = size
        for _ in range(_TRIES):
            area = width * height * rng.uniform(*self.scale)
            aspect = np.exp(rng.uniform(*np.log(self.ratio)))
            across, down = round(float(np.sqrt(area * aspect))), round(float(np.sqrt(area / aspect)))
            if 0 < across <= width and 0 < down <= height:
                left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
                return left, top, left + across, top + down
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        across, down = min(width, round(height * aspect)), min(height, round(width / aspect))
        left, top = (width - across) // 2, (height - down) // 2
        return left, top, left + max(across, 1), top + max(down, 1)
