"""`?n=`: some pictures of a data set in place of all."""

from collections.abc import Sequence

from diffusionlens.data.sample import Picture, PictureSource
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec

COUNT_OPTION = {"n": "so many pictures, evenly spaced over the data set; default all"}


class Subset:
    """The pictures `indices` of a source, in that order; everything else is the source's own."""

    def __init__(self, source: PictureSource, indices: Sequence[int]) -> None:
        self.source, self.indices = source, list(indices)
        self.label, self.spec = source.label, source.spec
        self.provides = source.provides
        self.classes, self.mask_classes = source.classes, source.mask_classes
        self.skipped = source.skipped

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.source.name(self.indices[index])

    def open(self, index: int) -> Picture:
        return self.source.open(self.indices[index])


def limited(source: PictureSource, spec: Spec) -> PictureSource:
    """`source`, or the `?n=` pictures of it that lie evenly spaced, so that every class stays in.

    Raises:
        InputError: n is no whole number from 1 to the number of pictures.
    """
    if "n" not in spec.query:
        return source
    text, available = spec.query["n"], len(source)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= available):
        raise InputError(f"?n={text} in '{spec.text}'; wanted a whole number from 1 to {available}, all there are")
    count = int(text)
    return Subset(source, [place * available // count for place in range(count)])
