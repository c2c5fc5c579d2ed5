"""Models: every known checkpoint as a timm ViT, with the facts that diagnostics need."""

from diffusionlens.models.backbone import Backbone, Origin, Preprocessing, Tokens
from diffusionlens.models.load import load_model

__all__ = ["Backbone", "Origin", "Preprocessing", "Tokens", "load_model"]
