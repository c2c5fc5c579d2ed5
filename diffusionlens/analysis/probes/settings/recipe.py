"""What can be said of how heads are trained and scored; `presets.py` says it. Every field has its range, and one line for what
lies beyond."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from diffusionlens.analysis.probes.heads.optimizer import Optimizer, Schedule, schedule_factor
from diffusionlens.analysis.probes.settings.ranges import flag, number, numbers, pair, size, whole, wholes, words

Task = Literal["segmentation", "depth", "classification"]
TASKS: tuple[Task, ...] = ("segmentation", "depth", "classification")

_MOST_STEPS = 10_000_000
Steps = Annotated[int, whole(0, _MOST_STEPS)]
Flag = Annotated[bool, flag()]
_SIDES = (8, 8192)
Size = Annotated[tuple[int, int], size(*_SIDES)]
SizeOrAuto = Annotated[tuple[int, int] | Literal["auto"], size(*_SIDES, also=("auto",))]

MOST_RATE = 1e6
"""A learning rate beyond this is a slip of the hand."""
MOST_DEPTH = 1e5
"""Metres."""
MIN_BINS = 2

SCORING = frozenset({"bins", "min_depth", "max_depth", "crop_name", "window", "stride", "view", "mirrored", "border"})
"""Fields that say how heads are scored, or what they must be; the others are of their training."""


class Recipe(BaseModel):
    """What all tasks share. `rates` are trained side by side, and the best is chosen by `held_out` of the training pictures,
    which no head then learns from; of a single rate nothing is held out. `warmup_start`: the share of its rate that a head
    begins with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: Annotated[int, whole(1, _MOST_STEPS)]
    batch_size: Annotated[int, whole(2, 65_536)]
    rates: Annotated[tuple[float, ...], numbers(0, MOST_RATE, 32)]
    weight_decay: Annotated[float, number(0, 10)]
    warmup: Steps
    warmup_start: Annotated[float, number(0, 1, above=True)] = 1e-6
    schedule: Schedule
    optimizer: Optimizer
    held_out: Annotated[float, number(0, 0.5, above=True)]

    def factor(self, step: int) -> float:
        """The factor of every rate at `step`, counted from 0."""
        return schedule_factor(step, self.iterations, self.warmup, self.schedule, self.warmup_start)


class DenseRecipe(Recipe):
    """Segmentation and depth. `points`: places of a picture that a step looks at."""

    points: Annotated[int, whole(1, 1_000_000)]


class SegmentationRecipe(DenseRecipe):
    """Batch norm and a linear map, cross-entropy, 255 ignored."""


class DepthRecipe(DenseRecipe):
    """DINOv2's lin. 1: features x4, a linear map to `bins` uniform bins, ReLU + 0.1, normalised, expectation. `sigloss_warmup`:
    steps in which only the mean term counts. `crop_name`: the part that is scored; auto is eigen for nyuv2, garg for kitti,
    none else. `max_depth` auto is 80 for kitti and 10 else (metres)."""

    bins: Annotated[int, whole(MIN_BINS, 4096)]
    min_depth: Annotated[float, number(0, MOST_DEPTH, above=True)]
    max_depth: Annotated[float | Literal["auto"], number(0, MOST_DEPTH, above=True, also=("auto",))]
    crop_name: Literal["auto", "eigen", "garg", "none"]
    sigloss_warmup: Steps
    clip: Annotated[float | None, number(0, 1e6, above=True, also=(None,))]

    @model_validator(mode="after")
    def _a_range_of_depth(self) -> "DepthRecipe":
        if self.max_depth != "auto" and self.min_depth >= self.max_depth:
            raise ValueError(
                f"wanted min_depth below max_depth, and they are {self.min_depth:g} and {self.max_depth:g}"
            )
        return self


class StreamedRecipe(DenseRecipe):
    """What heads ask for that learn from a stream of random crops. `flip`: the share of pictures that are mirrored;
    `whole_map`: the loss is that of every labelled pixel, as published, and not that of `points` random ones."""

    crop: SizeOrAuto
    flip: Annotated[float, number(0, 1)]
    whole_map: Flag


_MOST_OVERLAP = 16  # windows that begin in one: more would be a forward pass a pixel


class StreamedSegmentationRecipe(SegmentationRecipe, StreamedRecipe):
    """DINOv2's linear segmentation. `ratio`: range of the shorter side before the crop, over that of the crop;
    `most_of_one_class`: crops with a larger share of one class are drawn again, ten times at most; `photometric`: colours are
    changed at random; `window`, `stride`: of the sliding window that scores."""

    crop: Size
    ratio: Annotated[tuple[float, float], pair(0, 8)]
    most_of_one_class: Annotated[float, number(0, 1, above=True)]
    photometric: Flag
    window: Size
    stride: Annotated[tuple[int, int], size(1, _SIDES[1])]

    @model_validator(mode="after")
    def _windows_meet(self) -> "StreamedSegmentationRecipe":
        pairs = list(zip(self.stride, self.window, strict=True))
        if any(step > side for step, side in pairs):
            raise ValueError("a stride beyond the window would leave pixels out; wanted one up to window")
        if any(step * _MOST_OVERLAP < side for step, side in pairs):
            raise ValueError(f"wanted a stride of 1/{_MOST_OVERLAP} of the window at least")
        return self


class StreamedDepthRecipe(DepthRecipe, StreamedRecipe):
    """DINOv2's lin. 1 with its augmentation. `border`: what is cut away first (nyu: NYUv2's white border, in training only;
    kb: the lower 352x1216 pixels of KITTI's pictures, and of what is scored); auto goes by the data set. `rotate`: degrees at
    most, of half of the pictures; `brightness`: range of the factor, auto is 0.75 to 1.25, for kitti 0.9 to 1.1; `view`: size
    at which a whole picture is scored, auto is 480x640, for kitti 352x1216; `mirrored`: the mirrored picture counts too."""

    border: Literal["auto", "nyu", "kb", "none"]
    rotate: Annotated[float, number(0, 180)]
    brightness: Annotated[tuple[float, float] | Literal["auto"], pair(0, 10, also=("auto",))]
    view: SizeOrAuto
    mirrored: Flag


class ClassificationRecipe(Recipe):
    """k-NN at all of `k`, a linear head, and scikit-learn's logistic regression for at most `logreg_pictures` pictures;
    `methods` says which. `shots`: heads learn from so many pictures of every class."""

    methods: Annotated[tuple[Literal["knn", "linear", "logreg"], ...], words(("knn", "linear", "logreg"))]
    k: Annotated[tuple[int, ...], wholes(1, 1_000_000, 32)]
    temperature: Annotated[float, number(1e-3, 1000)]
    logreg_pictures: Annotated[int, whole(0, 1_000_000)]
    shots: Annotated[int | None, whole(1, 1_000_000, also=(None,))] = None


class ProtocolRecipe(Recipe):
    """A published linear classifier. Heads read the CLS of the last `blocks` side by side, `pools` with or without the mean
    patch of the last. `epochs` of the training pictures, where given, stand for `iterations`; `augment`: random crops, a forward
    each step; without, every picture goes through the model once."""

    blocks: Annotated[tuple[int, ...], wholes(1, 1000, 16)]
    pools: Annotated[tuple[Literal["cls", "cls+mean"], ...], words(("cls", "cls+mean"))]
    epochs: Annotated[int | None, whole(1, 100_000, also=(None,))]
    augment: Flag

    def steps(self, pictures: int) -> int:
        """How many there are with so many pictures to learn from."""
        if self.epochs is None:
            return self.iterations
        return max(1, round(self.epochs * pictures / min(self.batch_size, pictures)))
