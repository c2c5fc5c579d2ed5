"""Exact sparse attention for Vision Transformers: 1.5-entmax as an operator, and as timm attention layers."""

from diffusionlens.attention.functional import entmax15, entmax15_attention, entmax_attention

__all__ = ["entmax15", "entmax15_attention", "entmax_attention"]
