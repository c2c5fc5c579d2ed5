"""One built-in scene: what its options may be, and how it is drawn.

A scene is a textured wall, objects before it, and plain occluders; it is painted from far to near. Two streams of random
numbers keep the scenery apart from the objects: wall, occluders, light and noise are drawn without knowing the class.
At `context` 0 a pixel outside every object is therefore the same, byte for byte, whatever the class is.
"""

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffusionlens.data.scenes import patterns as patterns
from diffusionlens.data.scenes.patterns import Floats, Mask
from diffusionlens.errors import InputError

_LEAST_SHARE = 0.5  # of an object's pixels that stay visible
_LEAST_PIXELS = 8
_ATTEMPTS = 4  # to find a place for a further object

_RANGES: dict[str, tuple[float, float]] = {
    "n": (1, 100_000_000),
    "seed": (0, 2**32 - 1),
    "size": (32, 512),
    "classes": (2, len(patterns.SHAPES)),
    "hues": (1, len(patterns.SHAPES)),
    "objects": (1, 4),
    "occluders": (0, 6),
    "context": (0.0, 1.0),
}
KNOBS = {name: f"{low} to {high}" for name, (low, high) in _RANGES.items()}


@dataclass(frozen=True)
class SceneOptions:
    """`n` pictures of `size` x `size` pixels; `classes` of objects that share `hues` colours (fewer is harder); up to
    `objects` in a picture, the main one first, further ones small and of any class; up to `occluders` plain things.
    `context`: 0 = the background says nothing of the class, 1 = its texture determines it; in between, the share of
    pictures in which it does. Picture i depends on (`seed`, i) and the other options, not on `n`.

    Raises:
        InputError: a value out of its range.
    """

    n: int = 256
    seed: int = 0
    size: int = 64
    classes: int = 8
    hues: int = 6
    objects: int = 1
    occluders: int = 2
    context: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high or (_is_whole(name) and not isinstance(value, int)):
                raise _refusal(name, value)

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> "SceneOptions":
        """Reads the options of a DATA string; what is not given keeps its default.

        Raises:
            InputError: a value that is no number, or out of its range.
        """
        values: dict[str, Any] = {}
        for option in fields(cls):
            if (text := query.get(option.name)) is not None:
                try:
                    values[option.name] = int(text) if _is_whole(option.name) else float(text)
                except ValueError:
                    raise _refusal(option.name, text) from None
        return cls(**values)


def _is_whole(name: str) -> bool:
    return isinstance(_RANGES[name][0], int)


def _refusal(name: str, value: object) -> InputError:
    kind = "a whole number" if _is_whole(name) else "a number"
    low, high = _RANGES[name]
    return InputError(f"scenes: {name}={value} is out of range; wanted {kind} from {low:.12g} to {high:.12g}")


@dataclass(frozen=True)
class Scene:
    """One picture: `image` uint8 [S,S,3]; `mask` uint8 [S,S], 0 background (and occluders), 1 + class on the visible
    pixels of objects; `depth` float32 [S,S] in metres; `boxes` float32 [K,4] around the visible pixels, XYXY with
    exclusive ends, the main object first; `categories` int64 [K]; `label` the class of the main object."""

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    depth: NDArray[np.float32]
    boxes: NDArray[np.float32]
    categories: NDArray[np.int64]
    label: int


@dataclass(frozen=True)
class _Layer:
    """A thing before the wall: the pixels `here` [S,S] that it takes, their `colour` ([3], or [P,3] one each), its
    `distance` in metres, and its class (None: an occluder)."""

    here: Mask
    colour: Floats
    distance: float
    category: int | None = None


def render(options: SceneOptions, index: int, label: int | None = None) -> Scene:
    """Draws picture `index`; with `label`, the same picture as it would be with a main object of that class."""
    streams = np.random.SeedSequence((options.seed, index)).spawn(1 + options.objects)
    scenery, *objects_rng = (np.random.default_rng(stream) for stream in streams)
    drawn = int(scenery.integers(options.classes))
    label = drawn if label is None else label
    tied = scenery.random() < options.context
    kind = int(scenery.integers(len(patterns.BACKGROUNDS)))
    image = _wall(options.size, label if tied else kind, scenery)
    depth = _wall_depth(options.size, scenery)
    occluders = [_occluder(options.size, scenery) for _ in range(int(scenery.integers(options.occluders + 1)))]
    light = _light(options.size, scenery)
    noise = scenery.standard_normal((options.size, options.size, 1), dtype=np.float32) * np.float32(0.02)

    objects = _place_objects(options, label, objects_rng)
    behind, before = _share_out(occluders, objects)
    owner = np.zeros((options.size, options.size), np.uint8)
    for number, layer in enumerate([*behind, *objects, *before], start=1):
        image[layer.here] = layer.colour
        depth[layer.here] = layer.distance
        owner[layer.here] = number
    image = np.clip(image * light[..., None] + noise, 0, 1) * 255
    mask, boxes = _annotate(owner, objects, first=len(behind) + 1)
    categories = np.array([thing.category for thing in objects], np.int64)
    return Scene(image.astype(np.uint8), mask, depth, boxes, categories, label)


def _wall(size: int, kind: int, rng: np.random.Generator) -> Floats:
    """A texture of two near colours: low saturation and contrast, a brightness that says nothing."""
    x, y = patterns.coordinates(size)
    pattern = patterns.background(kind, x, y, _turn(rng), 2 + 4 * rng.random(), _own_stream(rng))
    brightness = 0.45 + 0.1 * (rng.random() - 0.5)
    contrast = 0.15 if rng.random() < 0.5 else -0.15
    hue = rng.random()
    first = _colour(hue, 0.2 * rng.random(), brightness)
    second = _colour(hue + 0.3 * (rng.random() - 0.5), 0.2 * rng.random(), brightness + contrast)
    return first + pattern[..., None].astype(np.float32) * (second - first)


def _wall_depth(size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A plane 8 to 9 m away, its lower end up to 0.8 m nearer than its upper end."""
    _, y = patterns.coordinates(size)
    return (np.float32(8 + rng.random()) - np.float32(0.8 * rng.random()) * (y - np.float32(0.5))).astype(np.float32)


def _place_objects(options: SceneOptions, label: int, streams: list[np.random.Generator]) -> list[_Layer]:
    """The main object, and those further ones for which a place was found that hides no other, from far to near."""
    objects = [_main_object(options, label, streams[0])]
    for number, rng in enumerate(streams[1:]):
        category = int(rng.integers(options.classes))
        for _ in range(_ATTEMPTS):
            diameter = 0.25 + 0.15 * rng.random()
            thing = _object(options, category, diameter, 2.65 - number / 4, rng)
            if _all_visible([*objects, thing]):
                objects.append(thing)
                break
    return objects


def _main_object(options: SceneOptions, label: int, rng: np.random.Generator) -> _Layer:
    """A thing of 2.25 m that takes 0.45 to 0.75 of the picture's side, and so stands 5 to 3 m away."""
    diameter = 0.45 + 0.3 * rng.random()
    return _object(options, label, diameter, 2.25 / diameter, rng)


def _object(options: SceneOptions, category: int, diameter: float, distance: float, rng: np.random.Generator) -> _Layer:
    """An object of a class within the picture, turned by up to 29 degrees."""
    x, y = patterns.coordinates(options.size)
    radius = diameter / 2
    left, top = (radius + (1 - diameter) * rng.random() for _ in range(2))
    angle = (rng.random() - 0.5) * 0.32 * pi
    right, down = x - np.float32(left), y - np.float32(top)
    along, across = np.float32(cos(angle) / radius), np.float32(sin(angle) / radius)
    u, v = right * along + down * across, down * along - right * across
    here = patterns.shape(category, u, v)
    first, second = _object_colours(category, options.hues, rng)
    frequency, phase = 1.3 * (1.6 + 0.9 * rng.random()), rng.random()
    share = patterns.texture(category, u[here], v[here], frequency, phase, rng)
    colour = second + share[:, None].astype(np.float32) * (first - second)
    return _Layer(here, colour, distance, category)


def _object_colours(category: int, hues: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A light and a dark tone of the class's hue, in either order; a plain object keeps to the first."""
    hue = (category % hues + 0.3 * (rng.random() - 0.5)) / hues
    light = _colour(hue, 0.6 + 0.35 * rng.random(), 0.8 + 0.2 * rng.random())
    dark = _colour(hue + 0.1 * (rng.random() - 0.5), 0.4 + 0.5 * rng.random(), 0.12 + 0.2 * rng.random())
    first, second = (light, dark) if rng.random() < 0.5 else (dark, light)
    if patterns.TEXTURES[category] == "plain":
        return first, first * np.float32(0.7)
    return first, second


def _occluder(size: int, rng: np.random.Generator) -> _Layer:
    """A plain ellipse or bar anywhere; its distance is set when it is known whether it may stand in front."""
    x, y = patterns.coordinates(size)
    angle = _turn(rng)
    right, down = x - np.float32(rng.random()), y - np.float32(rng.random())
    wide, tall = 0.04 + 0.06 * rng.random(), 0.05 + 0.1 * rng.random()
    u = right * np.float32(cos(angle) / wide) + down * np.float32(sin(angle) / wide)
    v = down * np.float32(cos(angle) / tall) - right * np.float32(sin(angle) / tall)
    here = u * u + v * v < 1 if rng.random() < 0.5 else np.maximum(np.abs(u), np.abs(v)) < 0.9
    return _Layer(here, _colour(rng.random(), 0.4 * rng.random(), 0.2 + 0.7 * rng.random()), distance=0)


def _share_out(occluders: list[_Layer], objects: list[_Layer]) -> tuple[list[_Layer], list[_Layer]]:
    """Occluders behind and before the objects, each from far to near.

    The nearest ones stand in front. The first that would hide too much stands behind the objects, and so do all that
    are farther than it: none is left out, for then the background would tell something of the object's shape.
    """
    front = len(occluders)
    while front and _all_visible([*objects, *occluders[front - 1 :]]):
        front -= 1
    behind = [replace(thing, distance=6.5 - number / 10) for number, thing in enumerate(occluders[:front])]
    before = [replace(thing, distance=1.8 - number / 10) for number, thing in enumerate(occluders[front:])]
    return behind, before


def _all_visible(layers: list[_Layer]) -> bool:
    """Whether every object among `layers` (from far to near) shows enough of itself."""
    covered = np.zeros_like(layers[0].here)
    for layer in reversed(layers):
        if layer.category is not None:
            shown, all_of_it = np.count_nonzero(layer.here & ~covered), np.count_nonzero(layer.here)
            if shown < max(_LEAST_PIXELS, _LEAST_SHARE * all_of_it):
                return False
        covered |= layer.here
    return True


def _light(size: int, rng: np.random.Generator) -> Floats:
    """Brightness of every pixel: a strength of 0.5 to 1 for the picture, and a slope across it."""
    x, y = patterns.coordinates(size)
    strength, angle = 1 - 0.5 * rng.random(), _turn(rng)
    slope = (x - np.float32(0.5)) * np.float32(cos(angle)) + (y - np.float32(0.5)) * np.float32(sin(angle))
    return np.float32(strength) * (1 + np.float32(0.25) * slope)


def _annotate(
    owner: NDArray[np.uint8], objects: list[_Layer], first: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Mask and boxes from the layer that owns each pixel; `first` is the number of the main object's layer."""
    mask = np.zeros_like(owner)
    boxes = np.zeros((len(objects), 4), np.float32)
    for number, thing in enumerate(objects):
        visible = owner == first + number
        mask[visible] = 1 + (thing.category or 0)
        rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
        boxes[number] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return mask, boxes


def _own_stream(rng: np.random.Generator) -> np.random.Generator:
    """A stream that takes one number from `rng`, however many are then taken from it."""
    return np.random.Generator(np.random.PCG64(int(rng.integers(2**63))))


def _turn(rng: np.random.Generator) -> float:
    return 2 * pi * rng.random()


def _colour(hue: float, saturation: float, value: float) -> Floats:
    """HSV (hue in turns) to RGB in 0..1."""
    return np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32)
