"""`scenes`: built-in procedural pictures with exact boxes, masks, depth and labels. No files, no download.

The class is the shape, texture and hue of the main object; everything else is nuisance. What makes it learnable by a
tiny network in minutes, and neither trivial nor hopeless: calm backgrounds of low saturation and fixed mean brightness,
large objects, little rotation, and six hues shared by eight classes, so that colour alone leaves some of them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from diffusionlens.data import scene_patterns as patterns
from diffusionlens.data.sample import Picture
from diffusionlens.data.scene_patterns import Floats, Mask
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_HUES = 6
_OCCLUDER = -1
_TAU = 2 * np.pi


@dataclass(frozen=True)
class SceneOptions:
    """`n` pictures of `size` x `size` pixels; `classes` of main objects; `objects` per picture (of any class); up to
    `occluders` plain things in front. `context`: 0 = the background says nothing of the class, 1 = it determines it; in
    between, the share of pictures in which it does. Picture i depends on (`seed`, i) and the other options only."""

    n: int = 256
    seed: int = 0
    size: int = 64
    classes: int = 8
    objects: int = 1
    occluders: int = 2
    context: float = 0.0


_LIMITS: dict[str, tuple[float, float]] = {
    "n": (1, 100_000_000),
    "seed": (0, 2**63 - 1),
    "size": (32, 512),
    "classes": (2, len(patterns.SHAPES)),
    "objects": (1, 4),
    "occluders": (0, 6),
    "context": (0, 1),
}


@dataclass(frozen=True)
class Scene:
    """One picture: `image` uint8 [S,S,3]; `mask` uint8 [S,S], 0 background (and occluders), 1 + class on the visible
    pixels of objects; `depth` float32 [S,S] in metres; `boxes` [K,4] around the visible pixels, XYXY with exclusive ends,
    the main object first; `categories` [K]; `label` the class of the main object."""

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    depth: Floats
    boxes: NDArray[np.float32]
    categories: NDArray[np.int64]
    label: int


class Scenes:
    """A data set of scenes (see `SceneOptions`)."""

    provides: frozenset[str] = frozenset({"boxes", "masks", "labels", "depth"})

    def __init__(self, options: SceneOptions, label: str | None = None, spec: str | None = None) -> None:
        self.options = options
        self.label = label or "scenes"
        self.spec = spec or "scenes:"
        self.classes: Sequence[str] = [
            f"{shape} ({texture})" for shape, texture in zip(patterns.SHAPES, patterns.TEXTURES, strict=True)
        ][: options.classes]
        self.skipped: list[tuple[str, str]] = []

    @classmethod
    def from_spec(cls, spec: Spec) -> "Scenes":
        """Opens `scenes:?n=256&seed=0&size=64&classes=8&objects=1&occluders=2&context=0`.

        Raises:
            InputError: an unknown option, or a value out of its range.
        """
        check_query(spec, {key: f"{low:g} to {high:g}" for key, (low, high) in _LIMITS.items()})
        if spec.rest:
            raise InputError(f"'{spec.text}': scenes are built in and have no folder; wanted scenes:?n=256&seed=0")
        values: dict[str, Any] = {}
        for option in fields(SceneOptions):
            if option.name in spec.query:
                values[option.name] = _number(spec, option.name, whole=option.type is not float)
        return cls(SceneOptions(**values), spec.label, spec.text)

    def __len__(self) -> int:
        return self.options.n

    def name(self, index: int) -> str:
        return f"scene-{self.options.seed}-{index:06d}"

    def open(self, index: int) -> Picture:
        scene = render(self.options, index)
        count = len(scene.boxes)
        return Picture(
            Image.fromarray(scene.image),
            self.name(index),
            scene.label,
            torch.from_numpy(scene.boxes),
            torch.from_numpy(scene.categories),
            torch.zeros(count, dtype=torch.bool),
            torch.zeros(count, dtype=torch.bool),
            torch.from_numpy(scene.mask.astype(np.int64)),
            torch.from_numpy(scene.depth),
        )


def _number(spec: Spec, key: str, *, whole: bool) -> float:
    low, high = _LIMITS[key]
    text = spec.query[key]
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{key}={text} in '{spec.text}'; wanted {kind} from {low:g} to {high:g}")
    return value


def render(options: SceneOptions, index: int) -> Scene:
    """Draws picture `index`."""
    rng = np.random.default_rng((options.seed, index))
    label = int(rng.integers(options.classes))
    canvas = _Canvas(options.size, rng)
    tied = rng.random() < options.context
    kind = int(rng.integers(len(patterns.BACKGROUNDS)))
    canvas.background(label if tied else kind)
    # Nearer things are drawn later. The main object is drawn first, so that its place and size depend on nothing else.
    canvas.place_object(label, distance=4 + rng.random())
    for further in range(1, options.objects):
        canvas.place_object(int(rng.integers(options.classes)), distance=4 - further / 2, small=True)
    for number in range(int(rng.integers(options.occluders + 1))):
        canvas.place_occluder(distance=1.8 - number / 10)
    return canvas.finish(label)


class _Canvas:
    """A picture in the making: colours, the owner of every pixel, and its distance."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.size, self.rng = size, rng
        self.x, self.y = patterns.coordinates(size)
        self.owner = np.zeros((size, size), np.int8)
        self.categories: list[int] = []

    def background(self, kind: int) -> None:
        rng = self.rng
        pattern = patterns.background(kind, self.x, self.y, rng.random() * _TAU, 2 + 4 * rng.random(), rng)
        brightness = 0.45 + 0.1 * (rng.random() - 0.5)
        contrast = 0.15 if rng.random() < 0.5 else -0.15
        hue = rng.random()
        first = _colour(hue, 0.2 * rng.random(), brightness)
        second = _colour(hue + 0.3 * (rng.random() - 0.5), 0.2 * rng.random(), brightness + contrast)
        self.image = first + pattern[..., None].astype(np.float32) * (second - first)
        slope = np.float32(0.8 * (rng.random() - 0.5))
        self.depth = np.float32(8 + rng.random()) + slope * (self.y - np.float32(0.5))

    def place_object(self, category: int, distance: float, *, small: bool = False) -> None:
        rng = self.rng
        diameter = 0.25 + 0.15 * rng.random() if small else 0.45 + 0.3 * rng.random()
        radius = diameter / 2
        centre = (radius + (1 - diameter) * rng.random(2)).astype(np.float32)
        angle = (rng.random() - 0.5) * 2 * _TAU * 0.08
        cos, sin = np.float32(np.cos(angle) / radius), np.float32(np.sin(angle) / radius)
        right, down = self.x - centre[0], self.y - centre[1]
        u, v = right * cos + down * sin, down * cos - right * sin
        here = patterns.shape(category, u, v)
        hue = (category % _HUES + 0.3 * (rng.random() - 0.5)) / _HUES
        light = _colour(hue, 0.6 + 0.35 * rng.random(), 0.8 + 0.2 * rng.random())
        dark = _colour(hue + 0.1 * (rng.random() - 0.5), 0.4 + 0.5 * rng.random(), 0.12 + 0.2 * rng.random())
        if patterns.TEXTURES[category] == "plain":
            dark = light * np.float32(0.7)
        elif rng.random() < 0.5:
            light, dark = dark, light
        frequency, phase = 1.3 * (1.6 + 0.9 * rng.random()), rng.random()
        share = patterns.texture(category, u[here], v[here], frequency, phase, rng)
        if not self._may_cover(here, most=0.4):
            return
        self.image[here] = dark + share[:, None].astype(np.float32) * (light - dark)
        self.depth[here] = distance
        self.categories.append(category)
        self.owner[here] = len(self.categories)

    def place_occluder(self, distance: float) -> None:
        rng = self.rng
        angle, place = rng.random() * _TAU, rng.random(2).astype(np.float32)
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        wide, tall = np.float32(0.04 + 0.06 * rng.random()), np.float32(0.05 + 0.1 * rng.random())
        right, down = self.x - place[0], self.y - place[1]
        u, v = (right * cos + down * sin) / wide, (down * cos - right * sin) / tall
        here = u * u + v * v < 1 if rng.random() < 0.5 else np.maximum(np.abs(u), np.abs(v)) < 0.9
        colour = _colour(rng.random(), 0.4 * rng.random(), 0.2 + 0.7 * rng.random())
        if self._may_cover(here, most=0.3):
            self.image[here] = colour
            self.depth[here] = distance
            self.owner[here] = _OCCLUDER

    def _may_cover(self, here: Mask, most: float) -> bool:
        """Whether no object placed so far would lose more than the share `most` of its visible pixels."""
        if not here.any():
            return False
        covered = np.bincount(np.maximum(self.owner[here], 0), minlength=len(self.categories) + 1)[1:]
        visible = np.bincount(np.maximum(self.owner, 0).ravel(), minlength=len(self.categories) + 1)[1:]
        return bool((covered <= most * visible).all())

    def finish(self, label: int) -> Scene:
        rng = self.rng
        direction = rng.random() * _TAU
        tilt = (self.x - np.float32(0.5)) * np.float32(np.cos(direction))
        tilt += (self.y - np.float32(0.5)) * np.float32(np.sin(direction))
        light = np.float32(1 - 0.5 * rng.random()) * (1 + np.float32(0.25) * tilt)
        image = self.image * light[..., None]
        image += rng.standard_normal((self.size, self.size, 1), dtype=np.float32) * np.float32(0.02)
        mask = np.zeros_like(self.owner, dtype=np.uint8)
        boxes = []
        for number, category in enumerate(self.categories, start=1):
            visible = self.owner == number
            mask[visible] = category + 1
            rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
            boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        return Scene(
            image=(np.clip(image, 0, 1) * 255).astype(np.uint8),
            mask=mask,
            depth=self.depth,
            boxes=np.array(boxes, np.float32),
            categories=np.array(self.categories, np.int64),
            label=label,
        )


_SECTORS = np.array([5.0, 3.0, 1.0])


def _colour(hue: float, saturation: float, value: float) -> Floats:
    """HSV (hue in turns) to RGB in 0..1."""
    place = (_SECTORS + hue * 6) % 6
    value = min(max(value, 0.05), 1.0)
    return (value - value * saturation * np.clip(np.minimum(place, 4 - place), 0, 1)).astype(np.float32)
