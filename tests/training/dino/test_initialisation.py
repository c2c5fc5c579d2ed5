"""Standard deviations of the weights, module by module."""

import pytest
import timm
import torch
from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.training.dino.initialisation import initialise

DEPTH, WIDTH, PATCH = 8, 128, 8

# Of a normal distribution cut at two standard deviations or more it would be less; DINO cuts at +-2, a hundred of them.
DINO = {"attn.qkv": 0.02, "attn.proj": 0.02, "mlp.fc1": 0.02, "mlp.fc2": 0.02}
FAN_IN = {
    "attn.qkv": WIDTH**-0.5,
    "attn.proj": WIDTH**-0.5 / (2 * DEPTH) ** 0.5,
    "mlp.fc1": WIDTH**-0.5,
    "mlp.fc2": (4 * WIDTH) ** -0.5 / (2 * DEPTH) ** 0.5,
}


def vit(how: str) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=64,
        patch_size=PATCH,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=2,
        num_classes=0,
        init_values=1e-5,
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7.0)  # what is not drawn anew is seen
    initialise(model, how)  # type: ignore[arg-type]
    return model.requires_grad_(False)


@pytest.mark.parametrize(("how", "stds"), [("dino", DINO), ("fan_in", FAN_IN)])
def test_standard_deviations(how: str, stds: dict[str, float]) -> None:
    model = vit(how)
    for block in model.blocks:  # type: ignore[union-attr]
        for name, std in stds.items():
            layer = block.get_submodule(name)  # type: ignore[operator]
            assert float(layer.weight.std()) == pytest.approx(std, rel=0.02)
            assert abs(float(layer.weight.mean())) < 0.02 * std
            assert not layer.bias.any()
        for norm in (block.norm1, block.norm2):  # type: ignore[union-attr]
            assert torch.equal(norm.weight, torch.ones(WIDTH))
            assert not norm.bias.any()
        assert (block.ls1.gamma == 7).all()  # type: ignore[union-attr]
    projection = model.patch_embed.proj.weight  # type: ignore[union-attr]
    inputs = 3 * PATCH**2
    # torch's own start of a convolution is uniform up to fan_in^-.5
    assert float(projection.std()) == pytest.approx(inputs**-0.5 / (3**0.5 if how == "dino" else 1), rel=0.02)  # type: ignore[union-attr, operator]
    assert float(model.pos_embed.std()) == pytest.approx(0.02, rel=0.03)  # type: ignore[union-attr, operator]
    assert float(model.cls_token.std()) == pytest.approx(0.02, rel=0.2)  # type: ignore[union-attr, operator]


def test_the_same_seed_gives_the_same_weights() -> None:
    assert all(torch.equal(a, b) for a, b in zip(vit("dino").parameters(), vit("dino").parameters(), strict=True))


def test_unknown() -> None:
    with pytest.raises(InputError, match="'xavier' does not exist; wanted one of dino, fan_in"):
        vit("xavier")
