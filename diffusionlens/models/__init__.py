"""Models: every known checkpoint as a timm ViT, with the facts that diagnostics need; variants upon them."""

from diffusionlens.models.backbone import Backbone, Origin, Preprocessing, Tokens
from diffusionlens.models.build import build
from diffusionlens.models.checkpoints.own_format import save_model
from diffusionlens.models.convert import convert
from diffusionlens.models.load import load_model, load_models, prepare_models

__all__ = [
    "Backbone",
    "Origin",
    "Preprocessing",
    "Tokens",
    "build",
    "convert",
    "load_model",
    "load_models",
    "prepare_models",
    "save_model",
]
