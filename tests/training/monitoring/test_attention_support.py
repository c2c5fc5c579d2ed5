"""The support that the log shows, against the entmax package on scores computed by hand."""

import pytest
import torch
from entmax import entmax15

from diffusionlens.models import build
from diffusionlens.training.monitoring.attention_support import attention_support

OPTIONS = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}


def pictures() -> torch.Tensor:
    return torch.randn(3, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def test_softmax_closes_nothing() -> None:
    assert attention_support(build("vit_tiny_patch16_224", **OPTIONS), pictures()) == 10  # CLS and 3 x 3 patches


def test_entmax_support() -> None:
    torch.manual_seed(0)
    model = build("vit_tiny_patch16_224", "entmax15", **OPTIONS).eval()
    block = model.blocks[0]
    torch.nn.init.normal_(block.attn.qkv.weight, std=0.6)  # sharp enough that some keys are closed
    found = attention_support(model, pictures())
    with torch.no_grad():
        tokens = block.norm1(model._pos_embed(model.patch_embed(pictures())))
        query, key, _ = block.attn.qkv(tokens).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        weights = entmax15(query @ key.transpose(-1, -2) / 4, dim=-1)
    assert found == pytest.approx(float((weights > 0).sum(-1).float().mean()), abs=0.01)
    assert 1 < found < 9
