"""Attribution: complete, of the right patch, in shares that add up to 1, and without a trace left in the model."""

import numpy as np
import pytest
import torch

from diffusionlens import load_model, measure
from diffusionlens.analysis.diffusion.provenance import attribute, regions, shares
from diffusionlens.data.open_data import open_data
from diffusionlens.data.transforms.fit import FitTransform
from tests.analysis.diffusion.encoders import ColouredBoxes, planted_encoder, transformer_without_mixing

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=96"


def test_integrated_gradients_are_complete_and_shares_add_up_to_one() -> None:
    torch.manual_seed(0)
    backbone = load_model(MODEL)
    sample = FitTransform((96, 96), (0.5,) * 3, (0.5,) * 3)(open_data("scenes:?n=2&size=96").open(0), 0)  # type: ignore[arg-type]
    with torch.inference_mode():
        target = backbone.normed(backbone.model.forward_features(sample.image[None]))[0, 0]
    for patch in ((0, 0), (3, 2)):
        found = attribute(backbone, sample.image, 12, patch, target, "normed", "integrated_gradients", 32)
        assert found.gap < 0.01 * found.change + 1e-6
        parts = shares(found.pixels, regions(sample, patch, backbone.patch_size))
        assert parts.sum().item() == pytest.approx(1)
        quick = attribute(backbone, sample.image, 12, patch, target, "normed", "input_x_gradient", 1)
        assert shares(quick.pixels, regions(sample, patch, backbone.patch_size)).sum().item() == pytest.approx(1)
        assert np.isnan(quick.gap)
    hooks = [h for block in backbone.blocks for h in (*block._forward_hooks, *block._forward_pre_hooks)]
    assert hooks == []


def test_input_x_gradient_is_that_of_finite_differences() -> None:
    backbone = planted_encoder(0.5)
    generator = torch.Generator().manual_seed(0)
    image, target = torch.rand(3, 64, 64, generator=generator), torch.randn(16, generator=generator)

    def score(picture: torch.Tensor) -> float:
        tokens = backbone.model.double().forward_features(picture.double()[None])
        return torch.cosine_similarity(tokens[0, 1 + 5 * 16 + 7], target.double(), dim=0).item()

    expected = 0.0
    for channel in range(3):
        step = torch.zeros_like(image).double()
        step[channel, 21, 30] = 1e-5
        expected += abs(image[channel, 21, 30].item() * (score(image + step) - score(image - step)) / 2e-5)
    backbone.model.float()
    found = attribute(backbone, image, 1, (5, 7), target, "raw", "input_x_gradient", 1)
    assert found.pixels[21, 30].item() == pytest.approx(expected, rel=1e-3)


def test_a_patch_that_cannot_see_others_has_everything_from_itself() -> None:
    results = measure(
        transformer_without_mixing(),
        "scenes:?n=2&size=128",
        analyses="diffusion",
        layers="last",
        options=["diffusion.leakage=false", "diffusion.spread=false", "diffusion.steps=8"],
    ).measurement.results  # type: ignore[union-attr]
    own = results[results["metric"] == "provenance_self"]
    assert len(own) == 2
    np.testing.assert_allclose(own["value"], 1, atol=1e-6)


def test_regions_are_disjoint_and_cover_the_picture() -> None:
    sample = FitTransform((64, 64), (0.5,) * 3, (0.5,) * 3)(ColouredBoxes().open(0), 0)  # type: ignore[arg-type]
    where = regions(sample, (0, 15), (4, 4))
    assert torch.equal(where.sum(0), torch.ones(64, 64, dtype=torch.int64))
    assert where[0].sum() == 8 * 8  # a corner: the patch and its three neighbours


def test_memory_does_not_depend_on_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps: so many pictures at a time go through the model."""
    backbone = load_model("a=timm:vit_tiny_patch16_224?pretrained=false&img_size=32")
    forward, seen = backbone.model.forward_features, []

    def watched(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return forward(images)

    backbone.model.forward_features = watched  # type: ignore[method-assign]
    image, target = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.ones(192)
    for steps in (16, 64):
        attribute(backbone, image, 12, (0, 0), target, "normed", "integrated_gradients", steps)
    assert sum(seen) > 80
    assert max(seen) <= 8
