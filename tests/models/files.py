"""Small ViTs and their files: what the tests of loading share."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models import Backbone, load_model

State = dict[str, torch.Tensor]
WIDTH, DEPTH, SIZE = 64, 2, 32
SMALL: dict[str, Any] = {"img_size": SIZE, "patch_size": 8, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": 1}


def shaken(model: nn.Module) -> nn.Module:
    """Adds noise to every weight, so that each of them matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def plain_vit(**options: Any) -> nn.Module:
    """The same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(VisionTransformer(**{**SMALL, "num_classes": 0, **options}))


def clip_like(**options: Any) -> nn.Module:
    """CLIP's: a norm in front of the blocks, and torch's own epsilon."""
    return plain_vit(pre_norm=True, norm_layer=partial(nn.LayerNorm, eps=1e-5), **options)


def timm_vit(name: str, **options: Any) -> nn.Module:
    return shaken(timm.create_model(name, num_classes=0, **options))


def written(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def tried(model: str | Path) -> Backbone | str:
    """The network, or the line that it is refused with; any other error comes through."""
    try:
        return load_model(str(model))
    except InputError as error:
        return str(error)


def refused(model: str | Path, pattern: str | None = None) -> str:
    """The one printable line that opening `model` is refused with."""
    with pytest.raises(InputError, match=pattern) as caught:
        load_model(str(model))
    line = str(caught.value)
    assert line
    assert line.isprintable()
    return line
