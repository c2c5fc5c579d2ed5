"""Conversion of a softmax model to entmax, and the temperature that keeps what it did."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import diffusionlens
from diffusionlens.attention import entmax15
from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.errors import InputError
from diffusionlens.models import Backbone, Origin, build, convert, load_model, save_model
from diffusionlens.models.timm_adapter import backbone_of

NAMES = {
    "vit_small_patch16_224": {"num_heads": 3},
    "vit_tiny_patch16_224": {"num_heads": 2, "qk_norm": True},  # norms on queries and keys
    "eva02_tiny_patch14_224": {"num_heads": 2, "img_size": 56},  # queries projected alone, rotary positions
    "beit_base_patch16_224": {"num_heads": 2},  # a query bias beside the weights
}


def softmax_model(name: str = "vit_small_patch16_224", specialize: str = "none") -> Backbone:
    torch.manual_seed(0)
    options = {"embed_dim": 48, "depth": 2, "img_size": 64, **NAMES[name]}
    model = build(name, specialize=specialize, **options)  # type: ignore[arg-type]
    for key, parameter in model.named_parameters():
        if parameter.dim() == 2 and "attn" in key and "table" not in key:
            nn.init.normal_(parameter, std=0.35)
        elif key.endswith(("q_bias", "qkv.bias", "q_proj.bias", "q_norm.weight", "q_norm.bias")):
            nn.init.normal_(parameter, mean=0.5, std=0.5)
        elif key.endswith("relative_position_bias_table"):
            nn.init.normal_(parameter, std=2.0)  # as large as the products, so that it matters
    return backbone_of("planted", model, Origin("planted", "timm", name))


def pictures(backbone: Backbone, count: int = 6) -> Tensor:
    return torch.randn(count, 3, *backbone.size, generator=torch.Generator().manual_seed(0))


def entropies(backbone: Backbone, images: Tensor) -> list[float]:
    """Of every layer, over all rows."""
    found: dict[int, list[Tensor]] = {}

    def look(block: AttentionBlock) -> None:
        found.setdefault(block.layer, []).append(torch.special.entr(block.weights).sum(-1).flatten())

    capture(backbone, images, [look])
    return [float(torch.cat(rows).mean()) for rows in found.values()]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_layer_has_the_entropy_of_before(name: str) -> None:
    """Of the first layer alone are the logits what they were: its entropy is the one that is planted and found again."""
    backbone = softmax_model(name)
    images = pictures(backbone)
    softmax = entropies(backbone, images)
    convert(backbone, "entmax15")
    converted = entropies(backbone, images)
    factors = diffusionlens.calibrate(backbone, images)
    calibrated = entropies(backbone, images)
    assert abs(converted[0] - softmax[0]) > 0.1
    assert abs(calibrated[0] - softmax[0]) < 0.03
    assert len(factors) == 2
    assert all(0.1 < factor < 1 for factor in factors), "entmax at the same logits is the sharper one"
    assert "entropy that softmax had" in backbone.origin.notes[-1]


def test_added_positions_scale_with_the_scores() -> None:
    """Every score of the first layer is the fitted factor times what it was, at the present size and at another one."""

    def scores(backbone: Backbone, images: Tensor) -> Tensor:
        found: list[Tensor] = []
        capture(backbone, images, [lambda block: found.append(block.logits) if block.layer == 1 else None])
        return torch.cat(found)

    backbone = softmax_model("beit_base_patch16_224")
    small = pictures(backbone)
    large = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    before = scores(backbone, small)
    backbone.set_size((96, 96))
    before_large = scores(backbone, large)
    backbone.set_size((64, 64))
    convert(backbone, "entmax15")
    factor = diffusionlens.calibrate(backbone, small)[0]
    torch.testing.assert_close(scores(backbone, small), before * factor, rtol=1e-4, atol=1e-4)
    backbone.set_size((96, 96))
    torch.testing.assert_close(scores(backbone, large), before_large * factor, rtol=1e-4, atol=1e-4)


def test_a_known_factor_is_found() -> None:
    """Logits so small that both maps are linear: 1.5-entmax of N keys answers sqrt(N) times as strongly as softmax does
    (p = (1/sqrt(N) + z/2)^2 -> slope 1/sqrt(N), against 1/N), and the outputs agree at 1/sqrt(N)."""
    backbone = softmax_model()
    for block in backbone.blocks:
        block.attn.qkv.weight.data[:96] *= 0.01  # type: ignore[union-attr, operator, index]
        block.attn.qkv.bias.data[:96] *= 0.01  # type: ignore[union-attr, operator, index]
    convert(backbone, "entmax15")
    factors = diffusionlens.calibrate(backbone, pictures(backbone), match="output")
    assert factors == pytest.approx([17**-0.5] * 2, rel=0.05)


def test_output_is_nearer_than_before() -> None:
    backbone = softmax_model()
    images = pictures(backbone)

    def output_of_first_block() -> Tensor:
        return capture(backbone, images).raw[1]

    softmax = output_of_first_block()
    convert(backbone, "entmax15")
    converted = (output_of_first_block() - softmax).norm()
    diffusionlens.calibrate(backbone, images, match="output")
    assert (output_of_first_block() - softmax).norm() < 0.8 * converted


def test_specialised_halves_are_both_scaled() -> None:
    backbone = softmax_model(specialize="cls_patch")
    qkv = build("vit_small_patch16_224", specialize="cls_patch", embed_dim=48, depth=3, num_heads=3, img_size=64)
    special = backbone_of("planted", qkv, Origin("planted", "timm", "vit"))
    before = [half.weight.clone() for half in (qkv.blocks[0].attn.qkv.cls, qkv.blocks[0].attn.qkv.patch)]  # type: ignore[union-attr, index]
    convert(special, "entmax15")
    factors = diffusionlens.calibrate(special, pictures(backbone))
    for half, old in zip((qkv.blocks[0].attn.qkv.cls, qkv.blocks[0].attn.qkv.patch), before, strict=True):  # type: ignore[union-attr, index]
        torch.testing.assert_close(half.weight[:48], old[:48] * factors[0])
        assert torch.equal(half.weight[48:], old[48:])


def test_through_a_file(tmp_path: Path) -> None:
    backbone = convert(softmax_model(), "entmax15")
    images = pictures(backbone)
    diffusionlens.calibrate(backbone, images)
    save_model(tmp_path / "calibrated.safetensors", backbone)
    again = load_model(str(tmp_path / "calibrated.safetensors"))
    assert again.origin.attention == "entmax15"
    assert torch.equal(capture(again, images).raw[2], capture(backbone, images).raw[2])


def test_attention_of_a_model_string(tmp_path: Path) -> None:
    save_model(tmp_path / "soft.safetensors", softmax_model())
    soft = load_model(f"{tmp_path}/soft.safetensors")
    sparse = load_model(f"{tmp_path}/soft.safetensors?attention=entmax15")
    assert (soft.origin.attention, sparse.origin.attention) == ("softmax", "entmax15")
    assert sparse.origin.notes[-1] == "trained with softmax attention, runs with entmax15"
    zeros: list[Tensor] = []
    capture(sparse, pictures(soft), [lambda block: zeros.append((block.weights - entmax15(block.logits)).abs().max())])
    assert max(zeros) < 1e-6
    with pytest.raises(InputError, match=r"attention=entmax.*wanted one of softmax, entmax15"):
        load_model(f"{tmp_path}/soft.safetensors?attention=entmax")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.full((2, 3, 64, 64), torch.nan), "NaN or infinite"),
        (torch.zeros(2, 3, 32, 32), "wanted"),
        (torch.zeros(3, 64, 64), "wanted"),
    ],
)
def test_pictures_that_cannot_be_used_change_nothing(given: Tensor, message: str) -> None:
    backbone = convert(softmax_model(), "entmax15")
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        diffusionlens.calibrate(backbone, given)
    assert all(torch.equal(value, before[name]) for name, value in backbone.model.state_dict().items())


def test_notes_say_what_a_model_was_trained_with() -> None:
    backbone = softmax_model()
    convert(backbone, "entmax15")
    assert backbone.origin.notes == ("trained with softmax attention, runs with entmax15",)
    convert(backbone, "softmax")
    assert backbone.origin.notes == ()
    untrained = load_model("timm:vit_tiny_patch16_224?pretrained=false&img_size=64&attention=entmax15")
    assert untrained.origin.notes == ("untrained: weights are random",)


def test_a_built_model_is_saved_as_it_is(tmp_path: Path) -> None:
    model = build("vit_small_patch16_224", "entmax15", 4, "cls_patch", img_size=64, embed_dim=48, depth=2, num_heads=2)
    save_model(tmp_path / "m.safetensors", model)
    opened = load_model(str(tmp_path / "m.safetensors"))
    assert (opened.origin.attention, opened.registers) == ("entmax15", 4)
    for name, value in opened.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_what_is_refused() -> None:
    backbone = softmax_model()
    images = pictures(backbone)
    with pytest.raises(InputError, match="has softmax attention; convert it to entmax15 first"):
        diffusionlens.calibrate(backbone, images)
    convert(backbone, "entmax15")
    with pytest.raises(InputError, match="match='mass' does not exist"):
        diffusionlens.calibrate(backbone, images, match="mass")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got no pictures"):
        diffusionlens.calibrate(backbone, [])
    assert backbone.origin.attention == "entmax15"
