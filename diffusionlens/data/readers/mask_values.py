"""From what a label file stores, indexes or colours, to class numbers; what belongs to no class is `IGNORE`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffusionlens.data.open_picture import open_colour_codes, open_index_mask
from diffusionlens.data.sample import IGNORE, UnreadablePicture


@dataclass(frozen=True)
class IndexValues:
    """Index masks: stored value -> class number or `IGNORE`. A value that is not in the table is refused: it means
    another layout or a damaged file, and calling it void would hide that."""

    classes: Mapping[int, int]
    wanted: str
    """The admitted values in words, for the message."""

    def read(self, path: Path) -> Tensor:
        """Class numbers, int64 [H,W].

        Raises:
            UnreadablePicture: as `open_index_mask`, or a foreign value.
        """
        return translate(open_index_mask(path), self.classes, path, self.wanted)


@dataclass(frozen=True)
class ColourValues:
    """Colour-coded masks: R + 256 G + 256^2 B -> class number or `IGNORE`; a foreign colour is refused."""

    classes: Mapping[int, int]

    def read(self, path: Path) -> Tensor:
        """Class numbers, int64 [H,W].

        Raises:
            UnreadablePicture: as `open_colour_codes`, or a foreign colour.
        """
        codes = open_colour_codes(path)
        found = torch.unique(codes)
        foreign = [code for code in found.tolist() if code not in self.classes]
        if foreign:
            red, green, blue = foreign[0] % 256, foreign[0] // 256 % 256, foreign[0] // 65536
            raise UnreadablePicture(str(path), f"the mask has the colour {red} {green} {blue}, which is no class's")
        numbers = torch.tensor([self.classes[code] for code in found.tolist()], dtype=torch.int64)
        return numbers[torch.searchsorted(found, codes)]


def translate(values: Tensor, classes: Mapping[int, int], path: Path, wanted: str) -> Tensor:
    """`values` [H,W] by the table `classes`.

    Raises:
        UnreadablePicture: a value that is not in the table; names the first.
    """
    largest = max(classes)
    table = torch.full((largest + 2,), -1, dtype=torch.int64)
    for value, number in classes.items():
        table[value] = number
    # Everything beyond the table meets its last entry, which no class has.
    result = table[values.clamp(-1, largest + 1)]
    if (foreign := values[result < 0]).numel():
        raise UnreadablePicture(str(path), f"the mask holds the value {int(foreign[0])}, wanted {wanted}")
    return result


def in_order(count: int, *void: int) -> dict[int, int]:
    """Values 0..count-1 as they are; `void` and `IGNORE` belong to no class."""
    return {value: value for value in range(count)} | dict.fromkeys((*void, IGNORE), IGNORE)
