"""What can be said of how heads are trained and scored; `presets.py` says it."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from diffusionlens.analysis.probes.optimizer import Optimizer, Schedule, schedule_factor

Task = Literal["segmentation", "depth", "classification"]
TASKS: tuple[Task, ...] = ("segmentation", "depth", "classification")


def _as_size(value: Any) -> Any:
    """512 is 512 x 512; "416x544" is rows x columns."""
    if isinstance(value, str):
        return tuple(int(side) for side in value.split("x"))
    return (value, value) if isinstance(value, int) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_as_size)]


class Recipe(BaseModel):
    """What all tasks share. `rates` are trained side by side, and the best is chosen by `held_out` of the training pictures,
    which no head then learns from; of a single rate nothing is held out. `warmup_start`: the share of its rate that a head
    begins with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    rates: tuple[float, ...] = Field(min_length=1, max_length=32)
    weight_decay: float = Field(ge=0)
    warmup: int = Field(ge=0)
    warmup_start: float = Field(gt=0, le=1, default=1e-6)
    schedule: Schedule
    optimizer: Optimizer
    held_out: float = Field(gt=0, lt=1)

    def factor(self, step: int) -> float:
        """The factor of every rate at `step`, counted from 0."""
        return schedule_factor(step, self.iterations, self.warmup, self.schedule, self.warmup_start)

    @model_validator(mode="after")
    def _rates_are_rates(self) -> "Recipe":
        if not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError("a learning rate is a number above 0")
        if len(set(self.rates)) < len(self.rates):
            raise ValueError("a learning rate is given twice")
        return self


class DenseRecipe(Recipe):
    """Segmentation and depth. `points`: places of a picture that a step looks at."""

    points: int = Field(ge=1)


class SegmentationRecipe(DenseRecipe):
    """Batch norm and a linear map, cross-entropy, 255 ignored."""


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


class StreamedRecipe(DenseRecipe):
    """What heads ask for that learn from a stream of random crops. `flip`: the share of pictures that are mirrored;
    `whole_map`: the loss is that of every labelled pixel, as published, and not that of `points` random ones."""

    crop: Size | Literal["auto"]
    flip: float = Field(ge=0, le=1)
    whole_map: bool


class StreamedSegmentationRecipe(SegmentationRecipe, StreamedRecipe):
    """DINOv2's linear segmentation. `ratio`: range of the shorter side before the crop, over that of the crop;
    `most_of_one_class`: crops with a larger share of one class are drawn again, ten times at most; `photometric`: colours are
    changed at random; `window`, `stride`: of the sliding window that scores."""

    crop: Size
    ratio: tuple[float, float]
    most_of_one_class: float = Field(gt=0, le=1)
    photometric: bool
    window: Size
    stride: Size

    @model_validator(mode="after")
    def _windows_meet(self) -> "StreamedSegmentationRecipe":
        if any(step > side for step, side in zip(self.stride, self.window, strict=True)):
            raise ValueError("a stride beyond the window would leave pixels out")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError("a ratio is two numbers above 0, the smaller one first")
        return self


class StreamedDepthRecipe(DepthRecipe, StreamedRecipe):
    """DINOv2's lin. 1 with its augmentation. `border`: what is cut away first (nyu: NYUv2's white border, in training only;
    kb: the lower 352x1216 pixels of KITTI's pictures, and of what is scored); auto goes by the data set. `rotate`: degrees at
    most, of half of the pictures; `brightness`: range of the factor, auto is 0.75 to 1.25, for kitti 0.9 to 1.1; `view`: size
    at which a whole picture is scored, auto is 480x640, for kitti 352x1216; `mirrored`: the mirrored picture counts too."""

    border: Literal["auto", "nyu", "kb", "none"]
    rotate: float = Field(ge=0, le=180)
    brightness: tuple[float, float] | Literal["auto"]
    view: Size | Literal["auto"]
    mirrored: bool


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


class ProtocolRecipe(Recipe):
    """A published linear classifier. Heads read the CLS of the last `blocks` side by side, `pools` with or without the mean
    patch of the last. `epochs` of the training pictures, where given, stand for `iterations`; `augment`: random crops, a forward
    each step; without, every picture goes through the model once."""

    blocks: tuple[PositiveInt, ...] = Field(min_length=1)
    pools: tuple[Literal["cls", "cls+mean"], ...] = Field(min_length=1)
    epochs: PositiveInt | None
    augment: bool

    def steps(self, pictures: int) -> int:
        """How many there are with so many pictures to learn from."""
        if self.epochs is None:
            return self.iterations
        return max(1, round(self.epochs * pictures / min(self.batch_size, pictures)))

    @model_validator(mode="after")
    def _inputs_differ(self) -> "ProtocolRecipe":
        if len(set(self.blocks)) < len(self.blocks) or len(set(self.pools)) < len(self.pools):
            raise ValueError("something is given twice")
        return self
