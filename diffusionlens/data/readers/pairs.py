"""Pictures that have one annotation file each, a mask or a depth map: the form of most dense data sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from diffusionlens.data.open_picture import check_size, open_rgb
from diffusionlens.data.sample import Picture
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec


@dataclass(frozen=True)
class Pair:
    """A picture's name in its data set, its file and its annotation's file."""

    name: str
    picture: Path
    annotation: Path


class Reading(Protocol):
    """How an annotation file becomes a map [H,W]; raises `UnreadablePicture`."""

    def read(self, path: Path) -> Tensor: ...


class PairedPictures:
    """Pictures with a mask or a depth map each; see `PictureSource`.

    Args:
        kind: of the DATA string; with the split it is the label when the user gives none.
        names: of the mask values, for masks; None for depth.

    Raises:
        InputError: no pair was found; says where `searched`.
    """

    def __init__(
        self,
        spec: Spec,
        split: str,
        pairs: Sequence[Pair],
        skipped: list[tuple[str, str]],
        reading: Reading,
        searched: Path,
        names: Sequence[str] | None = None,
    ) -> None:
        if not pairs:
            first = f"; first of {len(skipped)}: {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
            what = "a depth map" if names is None else "a mask"
            raise InputError(f"{searched} has no picture with {what} of split '{split}'{first}")
        self.label = spec.label or f"{spec.kind}-{split}"
        self.spec = spec.text
        self.pairs = list(pairs)
        self.skipped = skipped
        self.reading = reading
        self.classes: Sequence[str] = names or ()
        self.mask_classes: Sequence[str] = names or ()
        self.provides: frozenset[str] = frozenset({"depth"} if names is None else {"masks", "parsing"})

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return self.pairs[index].name

    def open(self, index: int) -> Picture:
        """Picture `index` with its map; the map decides whether an EXIF-rotated picture is meant as it is stored.

        Raises:
            UnreadablePicture: either file is damaged, or they are of different sizes (names both).
        """
        pair = self.pairs[index]
        values = self.reading.read(pair.annotation)
        size = (values.shape[1], values.shape[0])
        image = open_rgb(pair.picture, size)
        depth = "depth" in self.provides
        check_size(pair.annotation, "depth map" if depth else "mask", size, image.size, pair.picture)
        if depth:
            return Picture(image, pair.name, depth=values)
        return Picture(image, pair.name, mask=values)
