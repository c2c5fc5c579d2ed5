"""`scenes`: built-in procedural pictures with exact boxes, masks, depth and labels. No files, no download.

The class is the shape, texture and hue of the main object; everything else is nuisance. What makes it learnable by a
tiny network in minutes, and neither trivial nor hopeless: calm backgrounds of low saturation and fixed mean brightness,
large objects, little rotation, and six hues shared by eight classes, so that colour alone leaves some of them apart.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from PIL import Image

from diffusionlens.data.sample import Picture
from diffusionlens.data.scenes.patterns import SHAPES, TEXTURES
from diffusionlens.data.scenes.render import KNOBS, Scene, SceneOptions, render
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

__all__ = ["Scene", "SceneOptions", "Scenes", "render"]


class Scenes:
    """A data set of scenes (see `SceneOptions`)."""

    provides: frozenset[str] = frozenset({"boxes", "masks", "labels", "depth"})

    def __init__(self, options: SceneOptions, label: str | None = None, spec: str | None = None) -> None:
        self.options = options
        self.label = label or "scenes"
        self.spec = spec or _spec_of(options)
        names = [f"{shape} ({texture})" for shape, texture in zip(SHAPES, TEXTURES, strict=True)]
        self.classes: Sequence[str] = names[: options.classes]
        self.mask_classes: Sequence[str] = ("background", *self.classes)
        self.skipped: list[tuple[str, str]] = []

    @classmethod
    def from_spec(cls, spec: Spec) -> "Scenes":
        """Opens `scenes:?n=256&seed=0&size=64&classes=8&hues=6&objects=1&occluders=2&context=0`.

        Raises:
            InputError: an unknown option, or a value out of its range.
        """
        check_query(spec, KNOBS)
        if spec.rest:
            raise InputError(f"'{spec.text}': scenes are built in and have no folder; wanted scenes:?n=256&seed=0")
        return cls(SceneOptions.from_query(spec.query), spec.label, spec.text)

    def __len__(self) -> int:
        return self.options.n

    def name(self, index: int) -> str:
        return f"scene-{self.options.seed}-{index:06d}"

    def render(self, index: int) -> Scene:
        """Picture `index` as arrays, the fast path for training.

        Raises:
            IndexError: `index` is not in 0..n-1.
        """
        if not 0 <= index < self.options.n:
            raise IndexError(f"scene {index} of {self.options.n}")
        return render(self.options, index)

    def open(self, index: int) -> Picture:
        """Picture `index` with boxes, mask, depth and label.

        Raises:
            IndexError: `index` is not in 0..n-1.
        """
        scene = self.render(index)
        count = len(scene.boxes)
        return Picture(
            image=Image.fromarray(scene.image),
            name=self.name(index),
            label=scene.label,
            boxes=torch.from_numpy(scene.boxes),
            category=torch.from_numpy(scene.categories),
            crowd=torch.zeros(count, dtype=torch.bool),
            difficult=torch.zeros(count, dtype=torch.bool),
            mask=torch.from_numpy(scene.mask.astype(np.int64)),
            depth=torch.from_numpy(scene.depth),
        )


def _spec_of(options: SceneOptions) -> str:
    """The DATA string that opens the same scenes."""
    return "scenes:?" + "&".join(f"{option.name}={getattr(options, option.name)}" for option in fields(options))
