"""What the explorer stores: maps as deflated bytes, per picture, layer and model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PackedMap:
    """A map as zlib bytes of `levels` steps (see cosines.py and attention.py); `error` is the largest absolute error of any of
    its values against float64."""

    levels: int
    data: bytes
    error: float


@dataclass(frozen=True)
class PackedLayer:
    """One layer of one picture; `attention` is None in layer 0 and where attention is not seen."""

    cosines: PackedMap
    attention: PackedMap | None


@dataclass(frozen=True)
class PackedPicture:
    """A picture as the model saw it (`image`, JPEG bytes) and layer -> maps; `seconds` is what packing them took."""

    name: str
    image: bytes
    layers: dict[int, PackedLayer]
    seconds: float


@dataclass(frozen=True)
class ExploredModel:
    """A model's pictures, by their place in the data set. `grid` (h, w) patches, `size` (H, W) pixels, `tokens` normed or raw;
    `attention` says whether any was seen."""

    label: str
    grid: tuple[int, int]
    size: tuple[int, int]
    depth: int
    has_cls: bool
    registers: int
    tokens: str
    attention: bool
    pictures: dict[int, PackedPicture]

    @property
    def layers(self) -> list[int]:
        """The layers that every picture has, ascending."""
        first = next(iter(self.pictures.values()), None)
        return [] if first is None else sorted(first.layers)

    def cosine_maps(self) -> Iterator[PackedMap]:
        for picture in self.pictures.values():
            yield from (layer.cosines for layer in picture.layers.values())

    def attention_maps(self) -> Iterator[PackedMap]:
        for picture in self.pictures.values():
            yield from (layer.attention for layer in picture.layers.values() if layer.attention is not None)

    def summary(self) -> dict[str, Any]:
        """What was stored at what cost, for the manifest: errors are the largest of any entry of any map."""
        maps = [*self.cosine_maps(), *self.attention_maps()]
        pictures = list(self.pictures.values())
        return {
            "pictures": len(pictures),
            "bytes": sum(len(one.data) for one in maps) + sum(len(picture.image) for picture in pictures),
            "seconds": round(sum(picture.seconds for picture in pictures), 2),
            "extra_forwards": 0,
            "cosine_error": max((one.error for one in self.cosine_maps()), default=0.0),
            "attention_error": max((one.error for one in self.attention_maps()), default=0.0),
        }
