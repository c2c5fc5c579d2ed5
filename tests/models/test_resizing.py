"""Another picture size and back: tables are resized from the native ones, never from resized ones."""

import pytest
import torch

from diffusionlens.models import Origin, build
from diffusionlens.models.timm_adapter import backbone_of
from tests.models.files import shaken

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 2, "img_size": 64}


@pytest.mark.filterwarnings("ignore")  # of timm's own resizing
@pytest.mark.parametrize("name", ["beit_base_patch16_224", "vit_small_patch16_224", "eva02_tiny_patch14_224"])
def test_there_and_back(name: str) -> None:
    """BEiT keeps relative positions in every block, ViT one table, EVA-02 a table and rotary positions."""
    patch = 14 if "patch14" in name else 16
    model = shaken(build(name, **{**SMALL, "img_size": 4 * patch}))
    backbone = backbone_of(name, model, Origin(name, "timm", name))
    sizes = {"native": (4 * patch, 4 * patch), "small": (2 * patch, 3 * patch), "large": (7 * patch, 5 * patch)}

    def output(size: str) -> torch.Tensor:
        backbone.set_size(sizes[size])
        images = torch.randn(1, 3, *sizes[size], generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            return backbone.model.forward_features(images)

    first = {size: output(size) for size in sizes}
    for order in (["small", "native", "large"], ["large", "small", "native", "small"]):
        for size in order:
            assert torch.equal(output(size), first[size]), f"{size} after {order}"
    assert not torch.allclose(first["small"].mean(1), first["native"].mean(1), atol=1e-4)
