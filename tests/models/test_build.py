"""Variants of timm's ViTs: any name, both attentions, one training step, and through a file."""

from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.errors import InputError
from diffusionlens.models import Origin, build, load_model
from diffusionlens.models.checkpoints.own_format import describe, save_own
from diffusionlens.models.timm_adapter import backbone_of
from diffusionlens.models.variant import attention_of, set_attention, variant_of

# One of every kind of attention and position that timm's ViTs have; made small by their options.
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 2, "img_size": 64}
TEN_NAMES = {
    "vit_small_patch16_224": {**SMALL, "num_heads": 3},
    "deit3_small_patch16_224": SMALL,
    "vit_small_patch14_reg4_dinov2": {**SMALL, "img_size": 56},
    "vit_base_patch16_clip_224": SMALL,
    "vit_base_patch16_siglip_224": SMALL,
    "vit_base_patch16_xp_224": SMALL,
    "vit_dwee_patch16_reg1_gap_256": SMALL,
    "beit_base_patch16_224": SMALL,
    "eva02_tiny_patch14_224": {**SMALL, "img_size": 56},
    "vit_small_patch16_dinov3": SMALL,
    "vit_base_patch16_rope_224": SMALL,
    "flexivit_small": SMALL,
}


def picture(size: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("attention", ["softmax", "entmax15"])
@pytest.mark.parametrize("name", TEN_NAMES)
def test_every_kind_of_vit(name: str, attention: str, tmp_path: Path) -> None:
    options = TEN_NAMES[name]
    torch.manual_seed(0)
    model = build(name, attention, **options)  # type: ignore[arg-type]
    assert attention_of(model) == attention
    images = picture(options["img_size"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(images).square().mean().backward()
    optimizer.step()
    moved = [
        key for key, value in model.named_parameters() if value.grad is not None and not torch.equal(value, before[key])
    ]
    assert any("qkv" in key or "in_proj" in key for key in moved), "the gradient goes through the attention"
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())

    save_own(tmp_path / "model.safetensors", model, describe(model, epoch=3))
    loaded = load_model(str(tmp_path / "model.safetensors"))
    assert (loaded.origin.attention, loaded.origin.epoch) == (attention, 3)
    with torch.inference_mode():  # the kernels of attention with and without gradients differ in the last bit
        assert torch.equal(loaded.model(images), model.eval()(images))
    other = build(name, "softmax" if attention == "entmax15" else "entmax15", **options)  # type: ignore[arg-type]
    other.load_state_dict(model.state_dict())  # the names are the same


def test_entmax_is_in_every_block() -> None:
    torch.manual_seed(0)
    model = build("vit_small_patch16_224", "entmax15", **{**SMALL, "num_heads": 3}).eval()
    for block in model.blocks:  # type: ignore[union-attr]
        nn.init.normal_(block.attn.qkv.weight, std=0.3)  # type: ignore[union-attr, arg-type]
    backbone = backbone_of("planted", model, Origin("planted", "timm", "planted"))
    seen: list[tuple[int, str, float]] = []

    def look(block: AttentionBlock) -> None:
        assert torch.allclose(block.weights.sum(-1), torch.ones(()), atol=1e-5)
        seen.append((block.layer, block.normalizer, float((block.weights == 0).float().mean())))

    with_look = capture(backbone, picture(64), [look])
    without = capture(backbone, picture(64))
    assert [(layer, normalizer) for layer, normalizer, _ in seen] == [(1, "entmax15"), (2, "entmax15")]
    assert all(zeros > 0.3 for *_, zeros in seen)
    torch.testing.assert_close(with_look.raw[2], without.raw[2], atol=1e-5, rtol=1e-5)


def test_registers_stand_between_cls_and_patches_without_a_position() -> None:
    model = build("vit_small_patch16_224", registers=4)
    plain = build("vit_small_patch16_224")
    assert model.reg_token.shape == (1, 4, 384)  # type: ignore[union-attr, operator]
    assert model.pos_embed.shape == (1, 196, 384)  # type: ignore[union-attr]
    assert model.num_prefix_tokens == 5
    count = [sum(parameter.numel() for parameter in m.parameters()) for m in (plain, model)]
    assert count[1] - count[0] == 4 * 384 - 384  # registers, less the position of CLS
    assert build("eva02_tiny_patch14_224", registers=4).num_prefix_tokens == 5
    assert build("vit_small_patch14_reg4_dinov2", registers=0).num_prefix_tokens == 1
    assert build("vit_small_patch14_reg4_dinov2").num_prefix_tokens == 5
    assert build("beit_base_patch16_224", registers=0, **SMALL).num_prefix_tokens == 1


def test_specialization_costs_8_3_percent_parameters_and_no_operations() -> None:
    plain, special = build("vit_small_patch16_224"), build("vit_small_patch16_224", specialize="cls_patch")
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (plain, special)]
    assert sizes[0] == 21_665_664
    assert sizes[1] - sizes[0] == 4 * (3 * 384**2 + 3 * 384) + 25 * 2 * 384
    assert round(100 * (sizes[1] / sizes[0] - 1), 1) == 8.3
    operations = []
    for model in (plain, special):
        with FlopCounterMode(display=False) as counter:
            model(picture(224, 1))
        operations.append(counter.get_total_flops())
    assert operations[0] == operations[1] > 0


@pytest.mark.parametrize("attention", ["softmax", "entmax15"])
def test_a_specialized_model_starts_as_the_plain_one(attention: str, tmp_path: Path) -> None:
    options = {**SMALL, "num_heads": 3, "depth": 6}
    plain = build("vit_small_patch16_224", attention, **options).eval()  # type: ignore[arg-type]
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.2)
    special = build("vit_small_patch16_224", attention, specialize="cls_patch", **options).eval()  # type: ignore[arg-type]
    special.load_state_dict(plain.state_dict())
    torch.testing.assert_close(special(picture(64)), plain(picture(64)), atol=2e-5, rtol=2e-5)
    blocks = special.blocks
    doubled = ["cls" in dict(block.attn.qkv.named_children()) for block in blocks]  # type: ignore[union-attr]
    assert doubled == [True, True, False, False, False, False]
    before = special.forward_features(picture(64))  # type: ignore[operator]
    with torch.no_grad():
        special.norm.patch.weight.mul_(2)  # type: ignore[union-attr, operator]
    after = special.forward_features(picture(64))  # type: ignore[operator]
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1:], before[:, 1:])
    save_own(tmp_path / "own.safetensors", special, describe(special))
    again = load_model(str(tmp_path / "own.safetensors"))
    assert torch.equal(again.model.forward_features(picture(64)), after)  # type: ignore[operator]
    assert "specialised" in again.origin.architecture


def test_our_softmax_file_opens_in_timm_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    for registers in (None, 4):
        model = build("vit_small_patch16_224", registers=registers, **{**SMALL, "num_heads": 3}).eval()
        save_own(tmp_path / "own.safetensors", model, describe(model))
        more = {} if registers is None else {"reg_tokens": 4, "no_embed_class": True}
        alone = timm.create_model("vit_small_patch16_224", num_classes=0, **{**SMALL, "num_heads": 3}, **more).eval()
        alone.load_state_dict(load_file(tmp_path / "own.safetensors"))
        assert torch.equal(alone(picture(64)), model(picture(64)))


def test_attention_is_exchanged_in_place() -> None:
    model = build("vit_small_patch16_224", **{**SMALL, "num_heads": 3}).eval()
    before = model(picture(64))
    set_attention(model, "entmax15")
    assert variant_of(model).attention == "entmax15"
    assert not torch.equal(model(picture(64)), before)
    set_attention(model, "softmax")
    assert variant_of(model).attention == "softmax"
    assert torch.equal(model(picture(64)), before)


def test_what_is_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (
            {"name": "vit_smal_patch16_224"},
            "timm has no model 'vit_smal_patch16_224'; did you mean 'vit_small_patch16_224'",
        ),
        ({"name": "vit_small_patch16_224", "attention": "entmax"}, "attention='entmax' does not exist"),
        ({"name": "vit_small_patch16_224", "specialize": "cls"}, "specialize='cls' does not exist"),
        ({"name": "vit_small_patch16_224", "registers": -1}, "registers=-1; wanted 0 or more"),
        ({"name": "vit_small_patch16_224", "wings": 2}, "timm could not make .*wings"),
        ({"name": "beit_base_patch16_224", "registers": 4, **SMALL}, "can't have registers"),
        ({"name": "resnet18", "attention": "entmax15"}, "ResNet does not go through"),
        ({"name": "vit_base_patch16_siglip_224", "specialize": "cls_patch", **SMALL}, "no CLS token"),
        ({"name": "eva02_tiny_patch14_224", "specialize": "cls_patch"}, "not that of a plain pre-norm ViT"),
        ({"name": "vit_small_patch16_224", "attention": "entmax15", "attn_drop_rate": 0.1}, "drops attention weights"),
    ):
        with pytest.raises(InputError, match=message):
            build(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="was not made by diffusionlens"):
        describe(timm.create_model("vit_tiny_patch16_224"))
    odd = build("vit_small_patch16_224", **{**SMALL, "num_heads": 3, "norm_layer": nn.LayerNorm})
    with pytest.raises(InputError, match="options that a file can't keep"):
        save_own(tmp_path / "odd.safetensors", odd, describe(odd))
    assert list(tmp_path.iterdir()) == []
