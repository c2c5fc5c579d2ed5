"""What a training run is made of: one typed, validated recipe. Its keys are explained here and nowhere else.

Keys that shape the result have no default: they stand in a YAML file, so that a recipe saved in a run means the same in
every later version. Keys of `run` and `checkpoint` may change when a run is resumed; the others may not.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from diffusionlens.models.variant import AttentionName, Specialization
from diffusionlens.training.dino.initialisation import Initialisation
from diffusionlens.training.dino.loss import CenterStart

_DURATION = re.compile(r"^(\d+(?:\.\d+)?) ?(epochs?|steps?|%)$", re.ASCII)
_LONGEST = 1e9  # of epochs or steps


def _check_duration(text: object) -> str:
    if not isinstance(text, str) or not (found := _DURATION.match(text.strip())):
        raise ValueError(
            "wanted a number of epochs or steps, or a share of the run, as '10 epochs', '400 steps', '5 %'"
        )
    number, unit = found.groups()
    if unit.startswith("step") and "." in number:
        raise ValueError("wanted a whole number of steps")
    if float(number) > (100 if unit == "%" else _LONGEST):
        most = "100 %, the whole run" if unit == "%" else f"{_LONGEST:.0f}"
        raise ValueError(f"wanted at most {most}")
    return f"{number} {unit}"


Duration = Annotated[str, BeforeValidator(_check_duration)]
Share = Annotated[float, Field(ge=0, le=1)]
# Ends lie far beyond any use: what is outside is a slip, and would take memory, hours or overflow before anybody could say so.
Count = Annotated[int, Field(ge=1, lt=2**31)]
Strength = Annotated[float, Field(ge=0, le=10)]
Temperature = Annotated[float, Field(ge=1e-3, le=100)]
Decay = Annotated[float, Field(ge=0, le=100)]
Pixels = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=2**17)]
_Area = Annotated[float, Field(gt=0, le=1)]
_Radius = Annotated[float, Field(gt=0, le=1000)]


def duration_steps(text: str, steps_per_epoch: int, total: int | None = None) -> int:
    """A duration in steps, rounded; a share is of `total` steps."""
    found = _DURATION.match(text)
    assert found is not None, text
    number, unit = float(found[1]), found[2]
    if unit == "%":
        assert total is not None, "the length of a run is no share of itself"
        return round(total * number / 100)
    return round(number * steps_per_epoch) if unit.startswith("epoch") else int(number)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _check_ascending(section: _Section, *names: str) -> None:
    for name in names:
        low, high = getattr(section, name)
        if low > high:
            raise ValueError(f"{name} is [{low}, {high}]; wanted two numbers in ascending order")


class ModelSection(_Section):
    """The backbone: a timm ViT and the variant upon it."""

    name: str = Field(description="timm's name of the model")
    attention: AttentionName = Field(
        description="softmax, entmax15 or sparsemax, in every block of student and teacher"
    )
    registers: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        description="register tokens between CLS and patches; null for what the name has"
    )
    specialize: Specialization = Field(description="cls_patch for separate weights of CLS and patches, or none")
    options: dict[str, Any] = Field(description="further options of timm.create_model, as img_size, embed_dim, depth")
    drop_path: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="stochastic depth of the student, linear from 0 to this over the blocks"
    )
    initialisation: Initialisation = Field(
        description="dino: truncated normal of std .02. fan_in: std fan_in^-.5, for narrow models"
    )


class CropsSection(_Section):
    """Multi-crop: two global views and some local ones, each a random part of the picture."""

    global_size: Pixels = Field(description="side of the global views in pixels")
    global_scale: tuple[_Area, _Area] = Field(description="share of the picture's area in a global view, from and to")
    local_count: Annotated[int, Field(ge=0, le=256)] = Field(description="number of local views")
    local_size: Pixels = Field(description="side of the local views in pixels")
    local_scale: tuple[_Area, _Area] = Field(description="share of the picture's area in a local view, from and to")

    @model_validator(mode="after")
    def _ordered(self) -> "CropsSection":
        _check_ascending(self, "global_scale", "local_scale")
        return self


class AugmentationSection(_Section):
    """What happens to a view's colours. Probabilities in threes are of the first global, the second global, the locals."""

    place: Literal["workers", "device"] = Field(
        description="workers: picture by picture on the CPU (as DINO). device: batched where the model is"
    )
    flip: Share = Field(description="probability of a horizontal flip")
    jitter: Share = Field(description="probability of colour jitter")
    brightness: Strength = Field(description="strength of jitter")
    contrast: Strength = Field(description="strength of jitter")
    saturation: Strength = Field(description="strength of jitter")
    hue: Annotated[float, Field(ge=0, le=0.5)] = Field(description="strength of jitter, in turns of the hue circle")
    grey: Share = Field(description="probability of grey")
    blur: tuple[Share, Share, Share] = Field(description="probabilities of Gaussian blur")
    blur_radius: tuple[_Radius, _Radius] = Field(
        description="radius (standard deviation) of the blur in pixels, from and to"
    )
    solarize: tuple[Share, Share, Share] = Field(description="probabilities of solarisation")

    @model_validator(mode="after")
    def _ordered(self) -> "AugmentationSection":
        _check_ascending(self, "blur_radius")
        return self


class HeadSection(_Section):
    """DINO's projection head."""

    out_dim: Annotated[int, Field(ge=2, le=2**24)] = Field(
        description="number of prototypes K; ln K is the loss of uniform outputs"
    )
    hidden: Width = Field(description="width of the hidden layers")
    bottleneck: Width = Field(description="width before the last layer")
    layers: Annotated[int, Field(ge=1, le=64)] = Field(description="layers of the perceptron before the last layer")
    norm_last_layer: bool = Field(description="keeps the last layer's weight norm at 1")
    batch_norm: bool = Field(description="batch norm in the perceptron")


class TeacherSection(_Section):
    """The teacher: a moving average of the student, sharpened by its temperature."""

    momentum: Share = Field(description="of the moving average at the start")
    momentum_end: Share = Field(description="of the moving average at the end (cosine)")
    warmup_temperature: Temperature = Field(description="temperature at the start")
    temperature: Temperature = Field(description="temperature after the warm-up")
    temperature_warmup: Duration = Field(description="length of the linear ramp between the two")


class LossSection(_Section):
    """Cross-entropy between centred, sharpened teacher and student."""

    student_temperature: Temperature = Field(description="temperature of the student")
    center_momentum: Share = Field(description="momentum of the centre's moving average")
    center_start: CenterStart = Field(description="where the centre starts: 0, or the first batch's mean")


class OptimizerSection(_Section):
    """AdamW and its schedules, by step."""

    lr: Annotated[float, Field(gt=0, le=100)] = Field(
        description="peak learning rate at a batch of `lr_batch`; scaled in proportion to batch_size"
    )
    lr_batch: Count = Field(description="the batch that `lr` is for")
    lr_end: Annotated[float, Field(ge=0)] = Field(description="learning rate at the end (cosine), not scaled")
    warmup: Duration = Field(description="length of the linear ramp of the learning rate from 0")
    weight_decay: Decay = Field(description="at the start; biases and norms have none")
    weight_decay_end: Decay = Field(description="at the end (cosine)")
    clip: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        description="largest L2 norm of a gradient; null for no clipping"
    )
    clip_by: Literal["parameter", "global"] = Field(
        description="each parameter's own norm (as DINO), or that of all together"
    )
    freeze_last_layer: Duration = Field(description="how long the head's last layer is not trained")


class RunSection(_Section):
    """How the run is carried out on this machine; may change from one start to the next."""

    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
    workers: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=4, description="processes that read pictures, for each rank"
    )
    accumulate: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=1, description="parts that a rank's share of the batch is computed in, to save memory"
    )
    compile: bool = Field(default=False, description="compile the backbones with torch.compile")
    log_every: Count = Field(default=10, description="steps between two lines of the log")
    tensorboard: bool = Field(default=False, description="also write RUN/tensorboard (extra `tensorboard`)")
    wandb: str | None = Field(default=None, description="also log to this project of Weights & Biases (extra `wandb`)")


class CheckpointSection(_Section):
    """What is kept of a run; may change from one start to the next."""

    save: Duration = Field(default="1 epoch", description="how often last.pt is written")
    every: Duration = Field(
        default="10 epochs", description="how often a numbered checkpoint and the teacher's weights are kept"
    )
    keep: Count | None = Field(
        default=None, description="how many numbered checkpoints stay; null for all. The teacher's weights always stay"
    )

    @field_validator("save", "every")
    @classmethod
    def _some(cls, duration: str) -> str:
        if float(duration.split()[0]) == 0:
            raise ValueError("wanted more than 0")
        return duration


class Recipe(_Section):
    """A whole training run but for the pictures."""

    model: ModelSection
    crops: CropsSection
    augmentation: AugmentationSection
    head: HeadSection
    teacher: TeacherSection
    loss: LossSection
    optimizer: OptimizerSection
    length: Duration = Field(description="length of the run, in epochs or steps")
    batch_size: Annotated[int, Field(ge=1, le=2**24)] = Field(
        description="pictures in a step, all ranks and parts together"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(description="of weights, order of pictures and augmentation")
    precision: Literal["fp32", "bf16", "fp16"] = Field(description="of the forward pass (autocast); weights are fp32")
    init_from: str | None = Field(
        default=None, description="MODEL whose weights the backbone starts from, in place of random ones"
    )
    run: RunSection = Field(default_factory=RunSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)

    @model_validator(mode="after")
    def _possible(self) -> "Recipe":
        if self.length.endswith("%"):
            raise ValueError("length is a share; wanted epochs or steps, as '200 epochs'")
        sides = self.crops.local_size, self.crops.global_size
        if self.crops.local_count and sides[0] > sides[1]:
            raise ValueError(f"crops.local_size is {sides[0]}, larger than crops.global_size, {sides[1]}")
        if self.optimizer.lr_end > self.peak_lr:
            raise ValueError(
                f"optimizer.lr_end is {self.optimizer.lr_end:g}, above the peak learning rate {self.peak_lr:.3g} "
                f"(lr x batch_size / lr_batch): it would rise to the end; wanted at most that"
            )
        return self

    @property
    def peak_lr(self) -> float:
        return self.optimizer.lr * self.batch_size / self.optimizer.lr_batch


CHANGEABLE = ("run", "checkpoint")
"""Sections that may differ between a run and its resumption."""
