"""This project's own weights file: safetensors under timm's names, with the architecture in the metadata.

A plain softmax model of ours opens in timm alone: the names are timm's, and the metadata say what to build.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save_file
from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models.architecture import Architecture
from diffusionlens.models.backbone import Preprocessing
from diffusionlens.models.positions import PositionRule

KEY = "diffusionlens"


class Description(BaseModel):
    """What the metadata of an own file say. `recipe` is the training recipe, resolved; free of meaning for loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    architecture: Architecture
    attention: Literal["softmax"] = "softmax"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    position_rule: PositionRule = "dino"
    epoch: int | None = None
    recipe: dict[str, Any] = {}

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(self.mean, self.std, self.interpolation)


def save_own(path: Path, model: nn.Module, description: Description, dtype: torch.dtype = torch.float32) -> None:
    """Writes the weights of `model` in `dtype` with their description."""
    tensors = {key: value.detach().to(dtype).contiguous().cpu() for key, value in model.state_dict().items()}
    save_file(tensors, path, metadata={KEY: description.model_dump_json()})


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
