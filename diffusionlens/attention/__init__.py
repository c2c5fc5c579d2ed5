"""Exact sparse attention for Vision Transformers: 1.5-entmax as an operator, and as timm attention layers."""

from diffusionlens.attention.functional import entmax15, entmax15_attention, entmax_attention
from diffusionlens.attention.layers import EntmaxAttention, EntmaxAttentionRope

__all__ = ["EntmaxAttention", "EntmaxAttentionRope", "entmax15", "entmax15_attention", "entmax_attention"]
