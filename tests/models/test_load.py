"""timm names, sizes, and the real trained ViT with its reference outputs."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from diffusionlens.capture import capture
from diffusionlens.errors import InputError
from diffusionlens.models import load_model
from diffusionlens.models.architecture import Architecture, build
from diffusionlens.models.checkpoints.own_format import Description, save_own

# name -> (CLS, registers, patch, final norm)
TIMM = {
    "vit_tiny_patch16_224": (True, 0, 16, True),
    "vit_small_patch14_dinov2": (True, 0, 14, True),
    "vit_small_patch14_reg4_dinov2": (True, 4, 14, True),
    "vit_small_patch16_dinov3": (True, 4, 16, True),
    "eva02_tiny_patch14_224": (True, 0, 14, False),
    "beit_base_patch16_224": (True, 0, 16, False),
    "vit_base_patch32_clip_224": (True, 0, 32, True),
    "vit_base_patch16_siglip_224": (False, 0, 16, True),
    "deit3_small_patch16_224": (True, 0, 16, True),
    "deit_tiny_distilled_patch16_224": (True, 1, 16, True),
    "vit_medium_patch16_reg4_gap_256": (False, 4, 16, False),
    "vit_base_patch16_rope_224": (True, 0, 16, True),
    "vit_relpos_small_patch16_224": (False, 0, 16, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TIMM))
def test_timm_names(name: str) -> None:
    """Token layout by name, every layer's attention seen, and a size that is not square."""
    has_cls, registers, patch, final_norm = TIMM[name]
    backbone = load_model(f"timm:{name}?pretrained=false")
    assert (backbone.has_cls, backbone.registers, backbone.patch_size) == (has_cls, registers, (patch, patch))
    assert (backbone.norm is not None) == final_norm
    assert backbone.origin.untrained
    backbone.set_size((4 * patch, 6 * patch))
    seen: list[int] = []
    trace = capture(backbone, torch.randn(1, 3, 4 * patch, 6 * patch), [lambda block: seen.append(block.layer)])
    assert sorted(set(seen)) == list(range(1, backbone.depth + 1))
    assert trace.tokens(backbone.depth).patches.shape == (1, 4, 6, backbone.width)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "resnet18", "hiera_tiny_224"])
def test_models_without_one_token_grid_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="no single grid of patch tokens"):
        load_model(f"timm:{name}?pretrained=false")


def test_unknown_name_and_option() -> None:
    with pytest.raises(InputError, match="did you mean 'timm:deit3_small_patch16_224'"):
        load_model("timm:deit3_smal_patch16_224")
    for wrong, message in (
        ("vit_small", "did you mean 'timm:vit_small_"),
        ("X", "timm.list_models"),
        ("", "timm.list_models"),
        ("vit_small_patch16_224.dinoo", "no weights 'dinoo' of .* did you mean 'timm:vit_small_patch16_224.dino'"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(f"timm:{wrong}?pretrained=false")
    with pytest.raises(InputError, match="did you mean 'pretrained'"):
        load_model("timm:vit_tiny_patch16_224?pretraned=false")
    with pytest.raises(InputError, match="wanted true or false"):
        load_model("timm:vit_tiny_patch16_224?pretrained=no")


def test_no_network_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def offline(name: str, *, pretrained: bool = False, **options: object) -> object:
        if pretrained:
            raise OSError("no network\nat all")
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match="pretrained=false") as caught:
        load_model("timm:vit_tiny_patch16_224")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["resnet18", "vit_giant_patch14_224?img_size=65", "swin_tiny_patch4_window7_224?pretrained=false"]
)
def test_the_architecture_is_looked_at_before_memory_or_a_network_is_used(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, asked = timm.create_model, []

    def watched(name: str, *, pretrained: bool = False, **options: object) -> object:
        asked.append((pretrained, torch.empty(0).device.type))
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", watched)
    with pytest.raises(InputError, match=r"no single grid|img_size=65"):
        load_model(f"timm:{text}")
    assert asked == [(False, "meta")]


def test_untrained_weights_are_the_same_every_time() -> None:
    torch.manual_seed(5)
    first = load_model("timm:vit_tiny_patch16_224?pretrained=false")
    torch.manual_seed(6)
    state = torch.get_rng_state()
    second = load_model("timm:vit_tiny_patch16_224?pretrained=false")
    assert torch.equal(first.model.patch_embed.proj.weight, second.model.patch_embed.proj.weight)
    assert torch.equal(state, torch.get_rng_state())  # the caller's random numbers are left alone


def test_sizes() -> None:
    backbone = load_model("timm:vit_tiny_patch16_224?pretrained=false")
    native = backbone.model.pos_embed.clone()
    backbone.set_size((64, 96))
    assert backbone.grid == (4, 6)
    backbone.set_size((224, 224))
    assert torch.equal(backbone.model.pos_embed, native)  # from the native table, not from the shrunken one
    with pytest.raises(InputError, match="100 is not a multiple of its patch size 16; use 96 or 112"):
        backbone.set_size((100, 96))
    assert load_model("timm:vit_small_patch14_dinov2?pretrained=false").default_size() == (224, 224)
    assert load_model("timm:vit_tiny_patch16_224?pretrained=false&img_size=64").default_size() == (64, 64)


def test_own_format_round_trip(tmp_path: Path) -> None:
    architecture = Architecture(grid=(4, 4), patch_size=(8, 8), width=48, depth=2, heads=3, hidden=96, registers=2)
    torch.manual_seed(0)
    model = build(architecture).eval()
    save_own(tmp_path / "own.safetensors", model, Description(architecture=architecture, epoch=7, mean=(0.1, 0.2, 0.3)))
    backbone = load_model(str(tmp_path / "own.safetensors"))
    assert (backbone.heads, backbone.registers, backbone.origin.epoch) == (3, 2, 7)
    assert backbone.preprocessing.mean == (0.1, 0.2, 0.3)
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        expected = model.forward_features(images)
    torch.testing.assert_close(capture(backbone, images).tokens(2).patches.flatten(1, 2), expected[:, 3:])


def test_own_format_from_the_future(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "own.safetensors", metadata={"diffusionlens": '{"format": 2}'})
    with pytest.raises(InputError, match="update diffusionlens"):
        load_model(str(tmp_path / "own.safetensors"))


@pytest.mark.slow
def test_real_weights_give_the_reference_tokens(shared_data: Path) -> None:
    """As the data's README says: to 0.024 and cosine 0.99999 with bicubic positions, 0.9857 at worst with timm's."""
    file = shared_data / "weights" / "vit_small_patch14_saliency_fp16.safetensors"
    reference = np.load(shared_data / "weights" / "reference_features.npz")
    images, expected = torch.from_numpy(reference["input"]), torch.from_numpy(reference["last_hidden_state"])

    def tokens(rule: str) -> torch.Tensor:
        backbone = load_model(f"{file}{rule}")
        assert backbone.heads == 6
        assert backbone.parameters == 22_056_192
        backbone.set_size((224, 224))
        found = capture(backbone, images).tokens(12)
        assert found.cls is not None
        return torch.cat([found.cls[:, None], found.flat_patches], 1)

    exact = tokens("?positions=bicubic")
    assert float((exact - expected).abs().max()) <= 0.024
    assert float(torch.cosine_similarity(exact, expected, dim=-1).min()) >= 0.99999
    timms = torch.cosine_similarity(tokens("?positions=timm"), expected, dim=-1).min()
    assert float(timms) == pytest.approx(0.9857, abs=2e-4)
    # The family's own rule, the default, samples the table 0.1 / 16 of a patch apart.
    assert float(torch.cosine_similarity(tokens(""), expected, dim=-1).min()) > 0.999
