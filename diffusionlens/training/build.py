"""A recipe's parts, made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diffusionlens.errors import InputError, in_short
from diffusionlens.memory import is_shortage
from diffusionlens.models import build, load_model
from diffusionlens.models.checkpoints.loading import outline
from diffusionlens.models.variant import Variant
from diffusionlens.training.dino.head import DINOHead
from diffusionlens.training.dino.initialisation import initialise
from diffusionlens.training.dino.loss import DINOLoss
from diffusionlens.training.dino.networks import MultiCropNetwork, make_teacher
from diffusionlens.training.dino.optimizer import adamw
from diffusionlens.training.dino.step import Learner
from diffusionlens.training.ranks import Ranks
from diffusionlens.training.recipe import ModelSection, Recipe


def build_learner(recipe: Recipe, ranks: Ranks, *, fresh: bool) -> Learner:
    """Student, teacher, loss and optimiser on the rank's device, with starting weights: random ones (torch's generator), or those
    of `init_from` when `fresh`.

    Raises:
        InputError: the model can't be built so, its patches do not divide the views, or `init_from` does not fit.
    """
    if recipe.precision == "fp16" and ranks.device.type != "cuda":
        raise InputError("precision is fp16, which is for GPUs; use --set precision=bf16 or fp32")
    backbone = build_backbone(recipe, drop_path=recipe.model.drop_path)
    with _fitting(recipe):
        initialise(backbone, recipe.model.initialisation)
    if fresh and recipe.init_from is not None:
        start_from(backbone, recipe.init_from)
    student = MultiCropNetwork(backbone, _head(recipe, backbone))
    teacher_backbone = build_backbone(recipe, drop_path=0.0)
    teacher = make_teacher(student, teacher_backbone, _head(recipe, teacher_backbone))
    _try_views(student, recipe)
    student, teacher = student.to(ranks.device), teacher.to(ranks.device)
    if recipe.run.compile:
        student.backbone.compile()
        teacher.backbone.compile()
    wrapped: nn.Module = student
    if ranks.count > 1:
        if recipe.head.batch_norm:
            wrapped = nn.SyncBatchNorm.convert_sync_batchnorm(student) if ranks.device.type == "cuda" else student
        wrapped = DistributedDataParallel(wrapped, device_ids=[ranks.device] if ranks.device.type == "cuda" else None)
    loss = DINOLoss(
        recipe.head.out_dim, recipe.loss.student_temperature, recipe.loss.center_momentum, recipe.loss.center_start
    ).to(ranks.device)
    scaler = torch.amp.GradScaler(ranks.device.type, enabled=recipe.precision == "fp16")
    return Learner(student, wrapped, teacher, loss, adamw(student), scaler)


def build_backbone(recipe: Recipe, drop_path: float) -> nn.Module:
    """The recipe's ViT for pictures of the global views' size, weights random as timm makes them.

    Raises:
        InputError: it is no model that this training can build, timm can't make it with these options, or its patches do not
            divide the views.
    """
    crops, model = recipe.crops, recipe.model
    _refuse_other_kinds(model)
    if "drop_path_rate" in model.options:
        raise InputError("model.options has drop_path_rate, which the teacher must not have; say model.drop_path")
    options = {"img_size": crops.global_size, **model.options} | ({"drop_path_rate": drop_path} if drop_path else {})
    backbone = build(model.name, model.attention, model.registers, model.specialize, **options)
    if getattr(backbone, "cls_token", None) is None:
        raise InputError(f"{model.name} with model.options {model.options} has no CLS token, which DINO trains")
    embed: Any = backbone.patch_embed
    patch = embed.patch_size
    for name, size in (("global_size", crops.global_size), ("local_size", crops.local_size)):
        if any(size % length for length in patch):
            near = max(round(size / patch[0]), 1) * patch[0]
            raise InputError(
                f"crops.{name} is {size}, and {model.name} has patches of {patch[0]} pixels; use a multiple of that, as {near}"
            )
    return backbone


def _refuse_other_kinds(recipe: ModelSection) -> None:
    """Refuses what is no plain ViT before timm is asked to make one of it with options that it does not know.

    Raises:
        InputError: says what it lacks, and which kinds work.
    """
    model: Any = outline(Variant(timm=recipe.name))
    kind = type(model).__name__
    patches = getattr(model, "patch_embed", None)
    if not (isinstance(getattr(patches, "patch_size", None), tuple) and hasattr(patches, "grid_size")):
        lacking = f"is of another kind ({kind}), without one grid of patches"
    elif getattr(model, "cls_token", None) is None and not recipe.options.get("class_token"):
        lacking = f"({kind}) has no CLS token"
    elif getattr(model, "rope", None) is not None or not isinstance(getattr(model, "pos_embed", None), nn.Parameter):
        lacking = f"({kind}) has relative or rotary positions"
    else:
        return
    raise InputError(
        f"model.name={recipe.name} {lacking}; training takes a plain ViT with a CLS token and a learned position table, which it "
        f"resizes for each view: vit_* (without rope, relpos or siglip), deit*, cait* or *dinov2*"
    )


@contextmanager
def _fitting(recipe: Recipe) -> Iterator[None]:
    """timm makes much of what no picture could pass through, and raises of every kind when one is to."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if is_shortage(error):
            raise
        raise InputError(
            f"{recipe.model.name} with model.options {recipe.model.options} does not take the recipe's views "
            f"({in_short(error)}); change the options, or crops"
        ) from None


@torch.no_grad()
def _try_views(student: MultiCropNetwork, recipe: Recipe) -> None:
    """Sends one picture of each size through.

    Raises:
        InputError: the model does not take them.
    """
    sizes = [recipe.crops.global_size] * 2 + [recipe.crops.local_size] * recipe.crops.local_count
    training = student.training
    with _fitting(recipe):
        scores = student.eval()([torch.zeros(1, 3, size, size) for size in sorted(set(sizes), reverse=True)])
    if not scores.isfinite().all():
        raise InputError(
            f"{recipe.model.name} with model.options {recipe.model.options} gives values that are NaN or infinite before any "
            f"training; change the options"
        )
    student.train(training)


def start_from(backbone: nn.Module, model: str) -> None:
    """Gives a new backbone the weights of a trained MODEL, its positions resized by its own rule.

    Raises:
        InputError: MODEL can't be opened, or has other weights than the backbone (names the first ones).
    """
    try:
        trained = load_model(model)
    except InputError as error:
        raise InputError(f"init_from={model}: {error}") from None
    embed: Any = backbone.patch_embed
    rows, columns = (count * length for count, length in zip(embed.grid_size, embed.patch_size, strict=True))
    trained.set_size((rows, columns))
    own, given = backbone.state_dict(), trained.model.state_dict()
    wrong = sorted(
        list(own.keys() ^ given.keys())
        + [key for key in own.keys() & given.keys() if own[key].shape != given[key].shape]
    )
    if wrong:
        raise InputError(
            f"init_from={model} ({trained.origin.architecture}) does not fit the recipe's model: {len(wrong)} weights differ in "
            f"name or shape, as {', '.join(wrong[:3])}; give the recipe's model section that architecture"
        )
    backbone.load_state_dict(given)


def _head(recipe: Recipe, backbone: nn.Module) -> DINOHead:
    head = recipe.head
    return DINOHead(
        int(backbone.num_features),  # type: ignore[arg-type]
        head.out_dim,
        head.hidden,
        head.bottleneck,
        head.layers,
        head.norm_last_layer,
        head.batch_norm,
    )
