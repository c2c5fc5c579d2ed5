"""Capture sees what the model computes, changes nothing, and leaves nothing behind."""

import pytest
import timm
import torch
from torch import nn

from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Backbone, Origin
from diffusionlens.models.timm_adapter import backbone_of


def small(name: str = "vit_tiny_patch16_224", **options: object) -> Backbone:
    torch.manual_seed(0)
    options = {"depth": 3, "embed_dim": 48, "num_heads": 3, "img_size": 64, "num_classes": 0} | options
    return backbone_of("small", timm.create_model(name, **options), Origin("x", "timm", name))


def pictures(count: int = 3, size: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_tokens_are_those_of_timms_own_getter() -> None:
    backbone, images = small(), pictures()
    trace = capture(backbone, images)
    with torch.inference_mode():
        expected = backbone.model.get_intermediate_layers(
            images, n=range(3), norm=True, return_prefix_tokens=True, reshape=True
        )
    for layer, (patches, prefix) in enumerate(expected, start=1):
        tokens = trace.tokens(layer)
        torch.testing.assert_close(tokens.patches.permute(0, 3, 1, 2), patches, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(tokens.cls[:, None], prefix, rtol=1e-5, atol=1e-5)


def test_watching_changes_the_tokens_by_rounding_only() -> None:
    backbone, images = small(), pictures()
    watched = capture(backbone, images, [lambda block: None])
    plain = capture(backbone, images)
    for layer in range(4):
        torch.testing.assert_close(watched.raw[layer], plain.raw[layer], rtol=1e-5, atol=2e-6)


def test_attention_is_that_of_the_unfused_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own unfused path keeps the weights in `attn_drop`: an oracle that shares no code with the capture."""
    backbone, images = small(), pictures()
    found: dict[int, torch.Tensor] = {}
    capture(backbone, images, [lambda block: found.__setitem__(block.layer, block.weights.clone())])
    expected: list[torch.Tensor] = []
    for block in backbone.blocks:
        monkeypatch.setattr(block.attn, "fused_attn", False)
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: expected.append(output))
    with torch.inference_mode():
        backbone.model.forward_features(images)
    assert sorted(found) == [1, 2, 3]
    for layer, weights in enumerate(expected, start=1):
        torch.testing.assert_close(found[layer], weights, rtol=1e-5, atol=1e-6)


def test_one_layer_at_a_time_and_every_picture_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusionlens.capture._BLOCK_ELEMENTS", 3 * 17 * 17 * 2)  # two pictures a block
    seen: list[tuple[int, int, int]] = []
    capture(small(), pictures(5), [lambda block: seen.append((block.layer, block.pictures.start, block.pictures.stop))])
    assert seen == [(layer, start, stop) for layer in (1, 2, 3) for start, stop in ((0, 2), (2, 4), (4, 5))]


@pytest.mark.parametrize("mask_heads", [1, 3])
@pytest.mark.parametrize("kind", ["bool", "float", "causal", "scale"])
def test_masks_biases_and_scales_are_those_of_the_fused_call(kind: str, mask_heads: int) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 3
            self.options: dict[str, object] = {"is_causal": True} if kind == "causal" else {}
            generator = torch.Generator().manual_seed(2)
            if kind == "bool":
                keep = torch.rand(1, mask_heads, 17, 17, generator=generator) > 0.4
                keep[..., 0] = True
                self.options = {"attn_mask": keep}
            if kind == "float":
                self.options = {"attn_mask": torch.randn(1, mask_heads, 17, 17, generator=generator)}
            if kind == "scale":
                self.options = {"scale": 0.7}

        def forward(self, x: torch.Tensor, **_: object) -> torch.Tensor:
            q, k, v = (x.unflatten(-1, (3, 16)).transpose(1, 2) * factor for factor in (1.0, 0.9, 1.1))
            return nn.functional.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2)

    backbone, images = small(), pictures()
    for block in backbone.blocks:
        block.attn = Masked()
    watched = capture(backbone, images, [lambda block: None])
    plain = capture(backbone, images)
    torch.testing.assert_close(watched.raw[3], plain.raw[3], rtol=1e-4, atol=1e-5)


def test_no_hook_is_left_after_an_exception() -> None:
    backbone = small()

    def fails(block: AttentionBlock) -> None:
        raise RuntimeError("an observer's fault")

    with pytest.raises(RuntimeError, match="an observer's fault"):
        capture(backbone, pictures(), [fails])
    assert all(not block._forward_hooks and not block._forward_pre_hooks for block in backbone.blocks)
    query = torch.randn(1, 3, 17, 16)
    nn.functional.scaled_dot_product_attention(query, query, query)  # not seen by anybody, raises nothing


def test_unfused_attention_is_refused_by_name() -> None:
    backbone = small()
    backbone.blocks[1].attn.fused_attn = False
    with pytest.raises(InputError, match=r"no call .* block 2 .*leave out 'sparsity'"):
        capture(backbone, pictures(), [lambda block: None])
    assert 3 in capture(backbone, pictures()).raw  # the tokens can still be had


def test_tokens_that_are_not_finite_are_an_error() -> None:
    images = pictures()
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        capture(small(), images)


def test_registers_and_missing_cls_are_told_apart() -> None:
    with_registers = small(reg_tokens=4)
    tokens = capture(with_registers, pictures()).tokens(3)
    assert tokens.cls is not None
    assert tokens.registers.shape == (3, 4, 48)
    assert tokens.patches.shape == (3, 4, 4, 48)
    without_cls = small(class_token=False, global_pool="avg")
    tokens = capture(without_cls, pictures()).tokens(3)
    assert tokens.cls is None
    assert tokens.registers.shape[1] == 0
    assert tokens.patches.shape == (3, 4, 4, 48)


def test_layers_that_are_not_wanted_are_not_kept() -> None:
    assert sorted(capture(small(), pictures(), layers={0, 3}).raw) == [0, 3]
