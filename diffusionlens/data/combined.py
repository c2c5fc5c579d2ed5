"""Several data sets as one, in the order given."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from diffusionlens.data.sample import Picture, PictureSource
from diffusionlens.errors import InputError


class Combined:
    """The pictures of several sources one after the other, without annotations: their classes are not the same.

    Names begin with the label of their own source.
    """

    provides: frozenset[str] = frozenset()
    classes: Sequence[str] = ()
    mask_classes: Sequence[str] = ()

    def __init__(self, sources: Sequence[PictureSource]) -> None:
        """
        Raises:
            InputError: none, or two sources with one label.
        """
        labels = [source.label for source in sources]
        if not labels:
            raise InputError("no data were given; wanted one or more DATA")
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise InputError(f"two data sets are called '{twice}'; tell them apart as a=DATA b=DATA")
        self.sources = list(sources)
        self.label = "+".join(labels)
        self.spec = " + ".join(source.spec for source in sources)
        self.skipped = [entry for source in sources for entry in source.skipped]
        self._ends = list(accumulate(len(source) for source in sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int) -> str:
        source, place = self._find(index)
        return f"{source.label}/{source.name(place)}"

    def open(self, index: int) -> Picture:
        source, place = self._find(index)
        picture = source.open(place)
        return Picture(picture.image, self.name(index))

    def _find(self, index: int) -> tuple[PictureSource, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._ends, index)
        return self.sources[number], index - (self._ends[number - 1] if number else 0)


def combined(sources: Sequence[PictureSource]) -> PictureSource:
    """The one source as it is, or several as one."""
    return sources[0] if len(sources) == 1 else Combined(sources)
