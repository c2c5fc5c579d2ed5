"""The presets of every task, and settings over them."""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import yaml
from pydantic import ValidationError

from diffusionlens.analysis.probes.settings.recipe import (
    TASKS,
    ClassificationRecipe,
    DepthRecipe,
    ProtocolRecipe,
    Recipe,
    SegmentationRecipe,
    StreamedDepthRecipe,
    StreamedSegmentationRecipe,
    Task,
)
from diffusionlens.errors import InputError
from diffusionlens.wanted import wanted

_FAST: dict[Task, Recipe] = {
    "segmentation": SegmentationRecipe(
        iterations=300, batch_size=16, rates=(1e-3, 3e-3, 1e-2), weight_decay=1e-4, warmup=30, schedule="poly", optimizer="adamw",
        held_out=0.1, points=256,
    ),
    "depth": DepthRecipe(
        iterations=300, batch_size=8, rates=(3e-4, 1e-3, 3e-3), weight_decay=0.01, warmup=30, schedule="cosine",
        optimizer="adamw", held_out=0.1, points=96, bins=256, min_depth=1e-3, max_depth="auto",
        crop_name="auto", sigloss_warmup=30, clip=35.0,
    ),
    "classification": ClassificationRecipe(
        iterations=400, batch_size=256, rates=(0.003, 0.01, 0.03, 0.1), weight_decay=0.0, warmup=0, schedule="cosine",
        optimizer="sgd", held_out=0.1, methods=("knn", "linear", "logreg"), k=(10, 20, 100, 200), temperature=0.07,
        logreg_pictures=2000,
    ),
}  # fmt: skip

_DINOV2: dict[Task, Recipe] = {
    # dinov2_vits14_ade20k_linear_config.py: 16 pictures a step, crops of 512, AdamW, poly after 1500 steps of warm-up
    "segmentation": StreamedSegmentationRecipe(
        iterations=40_000, batch_size=16, rates=(1e-3,), weight_decay=1e-4, warmup=1500, schedule="poly", optimizer="adamw",
        held_out=0.1, points=4096, whole_map=True, crop=(512, 512), flip=0.5, ratio=(0.5, 2.0), most_of_one_class=0.75,
        photometric=True, window=(512, 512), stride=(341, 341),
    ),
    # dinov2_vits14_nyu_linear_config.py
    "depth": StreamedDepthRecipe(
        iterations=38_400, batch_size=16, rates=(1e-4,), weight_decay=0.01, warmup=12_800, warmup_start=1e-3, schedule="cosine",
        optimizer="adamw", held_out=0.1, points=1024, bins=256, min_depth=1e-3, max_depth="auto", crop_name="auto",
        sigloss_warmup=100, clip=35.0, whole_map=True, crop="auto", flip=0.5, border="auto", rotate=2.5, brightness="auto",
        view="auto", mirrored=True,
    ),
    # dinov2/eval/linear.py: 10 epochs of 1,250 steps of 8 x 128 pictures, 13 rates, of which the best counts
    "classification": ProtocolRecipe(
        iterations=12_500, epochs=None, batch_size=1024, weight_decay=0.0, warmup=0, schedule="cosine", optimizer="sgd",
        rates=(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1), held_out=0.1,
        blocks=(1, 4), pools=("cls", "cls+mean"), augment=True,
    ),
}  # fmt: skip

_DINO: dict[Task, Recipe] = {
    # dino/eval_linear.py, for ViT-S; the README has 8 x 128 pictures a step
    "classification": ProtocolRecipe(
        iterations=1, epochs=100, batch_size=1024, weight_decay=0.0, warmup=0, schedule="cosine", optimizer="sgd",
        rates=(1e-3,), held_out=0.1, blocks=(4,), pools=("cls",), augment=True,
    ),
}  # fmt: skip

_BY_PRESET = {"fast": _FAST, "dinov2": _DINOV2, "dino": _DINO}


def recipe_for(task: str, preset: str, settings: Iterable[str]) -> Recipe:
    """The preset with settings like "iterations=200" over it.

    Raises:
        InputError: an unknown task, preset or key, or a value that does not fit.
    """
    _known(task, TASKS, "task of probe")
    _known(preset, _BY_PRESET, "--preset")
    if task not in _BY_PRESET[preset]:
        raise InputError(f"--preset {preset} is not for {task}; wanted {' or '.join(_presets_of(task))}")
    base = _BY_PRESET[preset][task]
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals:
            raise InputError(f"--set '{setting}' is not understood; wanted KEY=VALUE, as iterations=500")
        _known(key, type(base).model_fields, f"setting of {task}")
        if key in values:
            raise InputError(f"--set {key} is given twice; give it once")
        try:
            values[key], given[key] = _shaped(yaml.safe_load(text), key), text.strip()
        except (yaml.YAMLError, ValueError, RecursionError):
            raise InputError(f"--set '{setting}': '{text}' is not a plain value") from None
    try:
        recipe = type(base)(**base.model_dump() | values)
    except ValidationError as error:
        raise _refused(error, given) from None
    counted = getattr(recipe, "epochs", None) is None  # with epochs, the steps depend on the pictures
    for key in ("warmup", "sigloss_warmup"):
        if counted and key in given and getattr(recipe, key) > recipe.iterations:
            raise InputError(f"--set {key}={given[key]}; wanted at most iterations, which is {recipe.iterations}")
    return recipe


def _refused(error: ValidationError, given: Mapping[str, str]) -> InputError:
    """One line: what came, and what was wanted."""
    first = error.errors()[0]
    keys = [str(first["loc"][0])] if first["loc"] else list(given)
    came = " ".join(f"--set {key}={given.get(key, '')}" for key in keys)
    return InputError(f"{came}; {wanted(first)}")


def _presets_of(task: str) -> list[str]:
    return [preset for preset, recipes in _BY_PRESET.items() if task in recipes]


_LISTS = ("rates", "k", "methods", "blocks", "pools")


def _shaped(value: Any, key: str) -> Any:
    """YAML's 1e-3 is a text, and a single value stands for a list of one."""
    if isinstance(value, list):
        return [_shaped(entry, "") for entry in value]
    if isinstance(value, str) and key not in ("crop_name", "border", "schedule", "optimizer"):
        try:
            value = float(value)
        except ValueError:
            if "," in value:
                return [_shaped(yaml.safe_load(part), "") for part in value.split(",")]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(value)
    return [value] if key in _LISTS and not isinstance(value, list) else value


def _known(name: str, known: Iterable[str], what: str) -> None:
    names = list(known)
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(f"'{name}' is no {what} (known: {', '.join(names)}){hint}")
