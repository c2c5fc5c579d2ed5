"""How heads are trained and scored: presets of every task, and settings over them."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diffusionlens.analysis.probes.optimizer import Optimizer, Schedule
from diffusionlens.errors import InputError

Task = Literal["segmentation", "depth", "classification"]
TASKS: tuple[Task, ...] = ("segmentation", "depth", "classification")
PRESETS = ("fast", "dinov2")


class Recipe(BaseModel):
    """What all tasks share. `rates` are trained side by side, and the best is chosen by `held_out` of the training pictures,
    which no head then learns from; of a single rate nothing is held out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: bool = Field(description="a forward pass for every picture and epoch, augmented; else one in all, cached")
    iterations: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    rates: tuple[float, ...] = Field(min_length=1, max_length=32)
    weight_decay: float = Field(ge=0)
    warmup: int = Field(ge=0)
    schedule: Schedule
    optimizer: Optimizer
    held_out: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _rates_are_rates(self) -> "Recipe":
        if not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError("a learning rate is a number above 0")
        if len(set(self.rates)) < len(self.rates):
            raise ValueError("a learning rate is given twice")
        return self


class DenseRecipe(Recipe):
    """Segmentation and depth. `points`: places of a picture that a cached step looks at; `crop`: rows and columns of a training
    crop when streaming, brought to the next multiple of the patch size."""

    points: int = Field(ge=1)
    crop: tuple[int, int]


class SegmentationRecipe(DenseRecipe):
    """Batch norm and a linear map, cross-entropy, 255 ignored. Streaming: sides scaled by `ratio` to `short_side`, crops,
    flips, photometric distortion; scored in windows of `crop`, `stride` apart."""

    short_side: int = Field(ge=16)
    ratio: tuple[float, float]
    stride: int = Field(ge=1)


class DepthRecipe(DenseRecipe):
    """DINOv2's lin. 1: features x4, a linear map to `bins` uniform bins, ReLU + 0.1, normalised, expectation. `sigloss_warmup`:
    steps in which only the mean term counts. `crop_name`: the part that is scored; auto is eigen for nyuv2, garg for kitti,
    none else. `max_depth` auto is 80 for kitti and 10 else (metres)."""

    bins: int = Field(ge=2)
    min_depth: float = Field(gt=0)
    max_depth: float | Literal["auto"]
    crop_name: Literal["auto", "eigen", "garg", "none"]
    sigloss_warmup: int = Field(ge=0)
    clip: float | None
    rotate: float = Field(ge=0, le=45)
    test_size: tuple[int, int]
    flip_test: bool


class ClassificationRecipe(Recipe):
    """k-NN at all of `k`, a linear head, and scikit-learn's logistic regression for at most `logreg_pictures` pictures;
    `methods` says which."""

    methods: tuple[Literal["knn", "linear", "logreg"], ...]
    k: tuple[int, ...] = Field(min_length=1)
    temperature: float = Field(gt=0)
    logreg_pictures: int = Field(ge=0)
    shots: int | None = Field(ge=1, default=None)

    @model_validator(mode="after")
    def _positive_k(self) -> "ClassificationRecipe":
        if any(k < 1 for k in self.k):
            raise ValueError("k is a whole number from 1")
        return self


_DINOV2_RATES = (*(factor * 10.0**power for power in range(-5, -1) for factor in (1, 2, 5)), 0.1)

_SEGMENTATION = SegmentationRecipe(
    stream=False, iterations=300, batch_size=16, rates=(1e-3, 3e-3, 1e-2), weight_decay=1e-4, warmup=30, schedule="poly",
    optimizer="adamw", held_out=0.1, points=256, crop=(512, 512), short_side=512, ratio=(0.5, 2.0), stride=341,
)  # fmt: skip
_DEPTH = DepthRecipe(
    stream=False, iterations=300, batch_size=8, rates=(3e-4, 1e-3, 3e-3), weight_decay=0.01, warmup=30, schedule="cosine",
    optimizer="adamw", held_out=0.1, points=96, crop=(416, 544), bins=256, min_depth=1e-3, max_depth="auto",
    crop_name="auto", sigloss_warmup=30, clip=35.0, rotate=2.5, test_size=(480, 640), flip_test=False,
)  # fmt: skip
_CLASSIFICATION = ClassificationRecipe(
    stream=False, iterations=400, batch_size=256, rates=(0.003, 0.01, 0.03, 0.1), weight_decay=0.0, warmup=0,
    schedule="cosine", optimizer="sgd", held_out=0.1, methods=("knn", "linear", "logreg"), k=(10, 20, 100, 200),
    temperature=0.07, logreg_pictures=2000,
)  # fmt: skip

_BY_NAME: dict[tuple[Task, str], Recipe] = {
    ("segmentation", "fast"): _SEGMENTATION,
    ("segmentation", "dinov2"): _SEGMENTATION.model_copy(
        update={"stream": True, "iterations": 40_000, "rates": (1e-3,), "warmup": 1500}
    ),
    ("depth", "fast"): _DEPTH,
    ("depth", "dinov2"): _DEPTH.model_copy(
        update={
            "stream": True, "iterations": 38_400, "batch_size": 16, "rates": (1e-4,), "warmup": 12_800, "sigloss_warmup": 100,
            "flip_test": True,
        }
    ),
    ("classification", "fast"): _CLASSIFICATION,
    ("classification", "dinov2"): _CLASSIFICATION.model_copy(
        update={"stream": True, "iterations": 12_500, "batch_size": 128, "rates": _DINOV2_RATES, "methods": ("knn", "linear")}
    ),
}  # fmt: skip


def recipe_for(task: str, preset: str, settings: Iterable[str]) -> Recipe:
    """The preset with settings like "iterations=200" over it.

    Raises:
        InputError: an unknown task, preset or key, or a value that does not fit.
    """
    _known(task, TASKS, "task of probe")
    _known(preset, PRESETS, "--preset")
    base = _BY_NAME[task, preset]  # type: ignore[index]
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals:
            raise InputError(f"--set '{setting}' is not understood; wanted KEY=VALUE, as iterations=500")
        _known(key, type(base).model_fields, f"setting of {task}")
        if key in values:
            raise InputError(f"--set {key} is given twice; give it once")
        try:
            values[key] = _shaped(yaml.safe_load(text), key)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise InputError(f"--set '{setting}': '{text}' is not a plain value") from None
    try:
        return type(base)(**base.model_dump() | values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ", ".join(values)
        raise InputError(f"--set {key}={values.get(key, '')}: {first['msg'].lower()}") from None


_PAIRS = ("crop", "test_size")
_LISTS = ("rates", "k", "methods")


def _shaped(value: Any, key: str) -> Any:
    """YAML's 1e-3 is a text, a single value stands for a list of one, and a side for a square."""
    if isinstance(value, list):
        return [_shaped(entry, "") for entry in value]
    if isinstance(value, str) and key not in ("crop_name", "schedule", "optimizer"):
        try:
            value = float(value)
        except ValueError:
            if "," in value:
                return [_shaped(yaml.safe_load(part), "") for part in value.split(",")]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    if key in _PAIRS and isinstance(value, int):
        return [value, value]
    return [value] if key in _LISTS and not isinstance(value, list) else value


def _known(name: str, known: Iterable[str], what: str) -> None:
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"'{name}' is no {what} (known: {', '.join(names)}){hint}")
