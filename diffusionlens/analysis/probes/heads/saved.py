"""Trained heads in a file, to be scored on other data without training. A stranger's file: nothing in it is believed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.heads.linear import DIVERGED, LayerHeads, state_shapes
from diffusionlens.analysis.probes.heads.training import diverged
from diffusionlens.analysis.probes.run import ModelProbe, ProbeSettings
from diffusionlens.analysis.probes.settings.recipe import MIN_BINS, MOST_DEPTH, SCORING, DepthRecipe
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError, in_short, some
from diffusionlens.models.checkpoints.own_format import write_tensors

_KEY = "diffusionlens_probe"
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)
_Kind = Literal["patch", "cls", "cls+patch", "shuffled_cls+patch", "mean+patch"]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Metres = Annotated[float, Field(gt=0, le=MOST_DEPTH, allow_inf_nan=False)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Unit(BaseModel):
    """The heads of one layer and training."""

    model_config = _STRICT
    layer: int = Field(ge=0, le=100_000)
    seed: int = Field(ge=0, le=100_000)
    kinds: tuple[_Kind, ...] = Field(min_length=1, max_length=len(KINDS))


class HeadFacts(BaseModel):
    """What heads are of: how they were made, and what they answer. `depth_range`: metres of their first and last bin; `digest`:
    of the model whose tokens they learned from; `trained_on`: DATA; `learning_rates`: layer -> kind -> rate."""

    model_config = _STRICT
    format: Literal[2] = 2
    task: Literal["segmentation", "depth"]
    units: tuple[Unit, ...] = Field(min_length=1, max_length=1_000_000)
    outputs: _Count
    width: _Count
    batch_norm: bool
    classes: tuple[str, ...]
    depth_range: tuple[_Metres, _Metres] | None
    model: str
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    trained_on: str
    learning_rates: dict[str, dict[_Kind, _Rate]]

    @model_validator(mode="after")
    def _agree(self) -> "HeadFacts":
        by_layer: dict[int, tuple[str, ...]] = {}
        for unit in self.units:
            ordered = tuple(kind for kind in KINDS if kind in unit.kinds)
            if unit.kinds != ordered or by_layer.setdefault(unit.layer, ordered) != ordered:
                raise ValueError("token kinds of a layer are out of order, or not those of all its trainings")
        if len({(unit.layer, unit.seed) for unit in self.units}) < len(self.units):
            raise ValueError("a layer's training is there twice")
        if {str(layer): set(kinds) for layer, kinds in by_layer.items()} != {
            layer: set(own) for layer, own in self.learning_rates.items()
        }:
            raise ValueError("the learning rates are not those of the heads")
        depth = self.task == "depth"
        if self.batch_norm == depth or (self.depth_range is not None) != depth:
            raise ValueError("batch_norm or depth_range does not fit the task")
        if self.depth_range is not None and self.depth_range[0] >= self.depth_range[1]:
            raise ValueError("the range of depth is empty")
        if depth and self.outputs < MIN_BINS:
            raise ValueError("the heads have too few bins")
        if not depth and self.outputs != len(self.classes):
            raise ValueError("the heads have not one output a class")
        return self

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors that the file must have, and no other."""
        return {
            f"{unit.layer}/{unit.seed}/{name}": shape
            for unit in self.units
            for name, shape in state_shapes(
                unit.kinds, self.width, self.outputs, batch_norm=self.batch_norm
            ).items()
        }  # fmt: skip

    @property
    def seeds(self) -> int:
        """Trainings, of the layer that has most."""
        return max(Counter(unit.layer for unit in self.units).values())


@dataclass(frozen=True)
class SavedHeads:
    """Heads of one model: (layer, seed) -> heads of one rate."""

    path: Path
    heads: dict[tuple[int, int], LayerHeads]
    facts: HeadFacts

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that some layer has."""
        return tuple(kind for kind in KINDS if any(kind in unit.kinds for unit in self.facts.units))

    def of_layer(self, layer: int, kinds: Sequence[str]) -> tuple[dict[tuple[int, int], LayerHeads], dict[str, float]]:
        """A layer's heads of the kinds that it has of `kinds`, one a seed, and their learning rates."""
        taken = {}
        for unit, own in self.heads.items():
            chosen = [0 if kind in kinds else None for kind in own.kinds]
            if unit[0] == layer and 0 in chosen:
                taken[unit] = own.select(chosen)
        rates = self.facts.learning_rates.get(str(layer), {})
        return taken, {kind: rate for kind, rate in rates.items() if kind in kinds}


def save_heads(heads: Mapping[tuple[int, int], LayerHeads], facts: Mapping[str, Any], path: Path) -> None:
    """Writes heads as safetensors; their facts, those of `HeadFacts` without format and units, are in its metadata."""
    tensors = {
        f"{layer}/{seed}/{name}": value.clone()
        for (layer, seed), own in heads.items()
        for name, value in own.state().items()
        if value.numel()
    }
    units = tuple(
        Unit.model_validate({"layer": layer, "seed": seed, "kinds": heads[layer, seed].kinds})
        for layer, seed in sorted(heads)
    )
    write_tensors(tensors, path, {_KEY: HeadFacts(**facts, units=units).model_dump_json()})


def read_heads(path: Path, device: torch.device) -> SavedHeads:
    """Reads what `save_heads` has written. Memory is taken for what the file really holds, never for what it claims.

    Raises:
        InputError: the file is missing, or holds something else.
    """
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise InputError(f"--heads {path} {what}; wanted a file heads/MODEL.safetensors of a probe with --save-heads")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise InputError(f"--heads {path} holds no heads of a probe; wanted a file that --save-heads made")
            facts = HeadFacts.model_validate_json(text)
            shapes = facts.shapes()
            names = set(file.keys())
            if names != set(shapes):
                odd = some(sorted(names ^ set(shapes)))
                raise InputError(f"--heads {path} is damaged: {odd} is missing, or too much")
            for name, shape in shapes.items():
                part = file.get_slice(name)
                if tuple(part.get_shape()) != shape or part.get_dtype() != "F32":
                    raise InputError(f"--heads {path} is damaged: {name} is not of the shape {shape} in float32")
            tensors = {name: file.get_tensor(name) for name in shapes}
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its facts"
        raise InputError(
            f"--heads {path} holds no heads that are understood ({place}: {in_short(first['msg'])}); train them again with "
            f"--save-heads"
        ) from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        raise InputError(
            f"--heads {path} can't be read ({in_short(error)}); wanted a file heads/MODEL.safetensors of a probe with "
            f"--save-heads"
        ) from None
    return SavedHeads(
        path, {(unit.layer, unit.seed): _made(unit, facts, tensors, path, device) for unit in facts.units}, facts
    )


def _made(unit: Unit, facts: HeadFacts, tensors: Mapping[str, Tensor], path: Path, device: torch.device) -> LayerHeads:
    start = f"{unit.layer}/{unit.seed}/"
    own = LayerHeads(unit.kinds, facts.width, facts.outputs, 1, 0, batch_norm=facts.batch_norm, device=device)
    state = {name: tensors.get(start + name, value) for name, value in own.state().items()}
    for name, value in state.items():
        if not bool((value.abs() < DIVERGED).all()):  # NaN is not below either
            raise InputError(f"--heads {path} is damaged: {start}{name} has numbers that no trained head has")
        if name.startswith("running_var") and bool((value < 0).any()):
            raise InputError(f"--heads {path} is damaged: {start}{name} is a variance below 0")
    own.load(state)
    return own


def refuse_beside_heads(settings: ProbeSettings, train: PictureSource | None, models: int) -> None:
    """
    Raises:
        InputError: something was asked for that trained heads have no use for.
    """
    if settings.task == "classification" or models > 1:
        raise InputError("--heads goes with one model, and with segmentation or depth")
    if train is not None:
        raise InputError("--heads is trained already, and --train would not be used; give one of the two")
    learning = sorted(settings.given - SCORING)
    if learning:
        raise InputError(
            f"--heads is trained already, and --set {learning[0]} would not be used; leave it out (of use: "
            f"{', '.join(sorted(SCORING))})"
        )


def scored_with(recipe: DepthRecipe, saved: SavedHeads, given: frozenset[str]) -> DepthRecipe:
    """The recipe with the bins and range that the heads were trained with, which their answers mean nothing without.

    Raises:
        InputError: others were asked for.
    """
    bounds = saved.facts.depth_range
    if bounds is None:  # of another task, which `fit_heads` says
        return recipe
    own: dict[str, float] = {"min_depth": bounds[0], "max_depth": bounds[1], "bins": saved.facts.outputs}
    for key, value in own.items():
        asked = getattr(recipe, key)
        if key in given and asked != "auto" and not math.isclose(asked, value, rel_tol=1e-6):
            raise InputError(
                f"--heads {saved.path} was trained with {key}={value:g}, and is scored with it; leave out --set {key}={asked:g}"
            )
    return recipe.model_copy(update=own)


def fit_heads(
    saved: SavedHeads,
    run: ModelProbe,
    task: str,
    classes: Sequence[str],
    settings: ProbeSettings,
    digest: str,
) -> None:
    """Gives `run` the layers and token kinds that were asked for and that the file has.

    Raises:
        InputError: the heads are of something else, or have none of these.
    """
    path, facts = saved.path, saved.facts
    if facts.task != task:
        raise InputError(
            f"--heads {path} is of {facts.task}, not of {task}; say `probe {facts.task}`, or give other heads"
        )
    if facts.digest != digest or facts.width != run.backbone.width:
        raise InputError(
            f"--heads {path} was trained on tokens of '{facts.model}', and {run.backbone.label} has other weights or another "
            f"size; give the model and the --size that they were trained on, or train new ones (--save-heads)"
        )
    if task == "segmentation" and facts.classes != tuple(classes):
        raise InputError(
            f"--heads {path} knows {len(facts.classes)} classes, which are not the {len(classes)} of this data, or have other "
            f"names; give the data set that it is of"
        )
    there = {unit.layer for unit in facts.units}
    layers = tuple(layer for layer in run.layers if layer in there)
    if not layers:
        raise InputError(
            f"--heads {path} has no head of the layers {settings.layers}; it has those of {some(sorted(there))}"
        )
    run.layers = layers
    kinds = tuple(kind for kind in settings.kinds if kind in saved.kinds)
    if not kinds:
        raise InputError(
            f"--heads {path} has no head of --tokens {','.join(settings.kinds)}; it has {', '.join(saved.kinds)}"
        )
    if settings.kinds != KINDS:
        run.left_out += [LeftOut(kind, "--heads has none of it") for kind in settings.kinds if kind not in saved.kinds]
    run.kinds = kinds


def left_out(
    kinds: Sequence[str], there: Sequence[str], layer: int, rates: Sequence[float], saved: SavedHeads | None
) -> list[LeftOut]:
    """Token kinds of a layer without heads, and why: they diverged, or are not in the file."""
    gone = [kind for kind in kinds if kind not in there]
    if saved is None:
        return [LeftOut(*diverged(kind, layer, rates)) for kind in gone]
    return [LeftOut(f"{kind} of layer {layer}", "--heads has none of it") for kind in gone]
