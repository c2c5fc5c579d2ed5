"""This project's own weights file: safetensors under timm's names, with what to build in the metadata.

A softmax model of ours opens in timm alone: the names are timm's. So do the weights of an entmax model, which timm would run
with softmax.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from diffusionlens.errors import InputError, in_short
from diffusionlens.models.backbone import Backbone, Preprocessing
from diffusionlens.models.positions import PositionRule
from diffusionlens.models.variant import Variant, variant_of

KEY = "diffusionlens"

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Scale = Annotated[float, Field(allow_inf_nan=False, gt=0)]


class Description(Variant):
    """What the metadata of an own file say. `recipe` is the training recipe, resolved; free of meaning for loading."""

    format: Literal[1] = 1
    mean: tuple[_Finite, _Finite, _Finite] = (0.485, 0.456, 0.406)
    std: tuple[_Scale, _Scale, _Scale] = (0.229, 0.224, 0.225)
    interpolation: str = Field(default="bicubic", pattern="^[a-z-]{1,20}$")
    position_rule: PositionRule = "dino"
    epoch: int | None = None
    step: int | None = None
    recipe: dict[str, Any] = Field(default_factory=dict)

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.mean, self.std, self.interpolation)


def describe(model: nn.Module, **facts: Any) -> Description:
    """The description of a model of ours, with `facts` (mean, std, interpolation, position_rule, epoch, step, recipe).

    Raises:
        InputError: the model was made elsewhere.
    """
    # A model out of one of our files carries all of that file's description, of which only what to build is its own.
    return Description(**variant_of(model).model_dump(include=set(Variant.model_fields)), **facts)


def save_own(path: Path, model: nn.Module, description: Description, dtype: torch.dtype = torch.float32) -> None:
    """Writes the weights of `model` in `dtype` with their description; whole or not at all.

    Raises:
        InputError: the description can't be written (an option of the model that is no plain value), or `path` can't be.
    """
    tensors = {key: value.detach().to(dtype).contiguous().cpu() for key, value in model.state_dict().items()}
    try:
        metadata = {KEY: description.model_dump_json()}
    except ValueError as error:  # pydantic's errors are
        reason = in_short(error)
        raise InputError(f"{path}: the model has options that a file can't keep ({reason}); use plain values") from None
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_tensors(tensors, temporary, metadata)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} could not be written ({error})") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Writes a safetensors file with the rights that new files have here; `save_file` alone lets nobody else read it."""
    path.touch()
    rights = path.stat().st_mode
    save_file(tensors, path, metadata=metadata)
    path.chmod(rights)


def save_model(path: Path | str, model: Backbone | nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Writes a Backbone, or a model that `build` made, as it stands, as a file of ours that `load_model` opens.

    Raises:
        InputError: see `save_own`; or the model was made elsewhere, or stands at another than its native size.
    """
    if isinstance(model, nn.Module):
        save_own(Path(path), model, describe(model), dtype)
        return
    backbone = model
    if backbone.size != backbone.native_size:
        raise InputError(
            f"{backbone.label} stands at {backbone.size[0]}x{backbone.size[1]}; a file keeps the positions of its native size: "
            f"say backbone.set_size(backbone.native_size) first"
        )
    preparing = backbone.preprocessing
    facts = {"mean": preparing.mean, "std": preparing.std, "interpolation": preparing.interpolation}
    description = describe(
        backbone.model,
        **facts,
        position_rule=backbone.position_rule,
        epoch=backbone.origin.epoch,
        step=backbone.origin.step,
        recipe=backbone.origin.recipe,
    )
    save_own(Path(path), backbone.model, description, dtype)


def read_description(metadata: dict[str, str], file: str) -> Description | None:
    """The description in the metadata of a file, or None when it is not one of ours.

    Raises:
        InputError: it is ours, and can't be understood.
    """
    if KEY not in metadata:
        return None
    try:
        return Description.model_validate_json(metadata[KEY])
    except (ValidationError, json.JSONDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{file} is one of ours, but its description is not understood ({place}: {first['msg']}); it may come from a "
            f"newer version: update diffusionlens"
        ) from None
