"""Some test pictures with what heads on the last layer say, for the page: evenly spaced, not chosen by how well they look."""

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from diffusionlens.data.sample import Picture
from diffusionlens.data.transforms.random_crops import nearest
from diffusionlens.material import ProbedPicture

SHOWN_KINDS = ("patch", "cls+patch")
_PICTURES = 4
_LONGEST = 320  # pixels; as large as a page shows them


def evenly_spaced(count: int) -> list[int]:
    """Places of the pictures to show, out of `count`."""
    shown = min(count, _PICTURES)
    return [(2 * place + 1) * count // (2 * shown) for place in range(shown)]


def probed_picture(
    picture: Picture, target: Tensor, predicted: Mapping[str, Tensor], layer: int, classes: Sequence[str]
) -> ProbedPicture:
    """The picture, its labels and the heads' maps [H,W] (token kind -> map), all at one small size."""
    width, height = picture.image.size
    factor = min(1.0, _LONGEST / max(width, height))
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    image = picture.image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    maps = {kind: nearest(own.cpu(), size).numpy() for kind, own in predicted.items()}
    return ProbedPicture(
        picture.name, layer, np.array(image), nearest(target.cpu(), size).numpy(), maps, tuple(classes)
    )
