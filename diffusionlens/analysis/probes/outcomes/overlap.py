"""Test pictures that the heads learn from, too: their scores say what heads remember."""

from collections.abc import Sequence

import numpy as np

from diffusionlens.data.sample import PictureSource, UnreadablePicture

_LOOKED_AT = 4  # pictures of one name, which may show different things


def pictures_in_both(test: PictureSource, train: PictureSource | None) -> int:
    """How many pictures of `test` have the name of one of `train`, where a few of these are found to be the same pixel for
    pixel; 0 where one is not. Copies under another name are not noticed."""
    if train is None:
        return 0
    places = {train.name(index): index for index in range(len(train))}
    shared = [(index, places[name]) for index in range(len(test)) if (name := test.name(index)) in places]
    if not shared or test.spec == train.spec:
        return len(shared)
    steps = range(0, len(shared), -(-len(shared) // _LOOKED_AT))
    return len(shared) if _alike([shared[step] for step in steps], test, train) else 0


def _alike(shared: Sequence[tuple[int, int]], test: PictureSource, train: PictureSource) -> bool:
    seen = 0
    for one, other in shared:
        try:
            own, learned = np.asarray(test.open(one).image), np.asarray(train.open(other).image)
        except UnreadablePicture:
            continue
        if not np.array_equal(own, learned):
            return False
        seen += 1
    return seen > 0
