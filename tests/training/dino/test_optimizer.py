"""Decay groups by name, AdamW and clipping against float64, the frozen last layer."""

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from diffusionlens.training.dino.head import DINOHead
from diffusionlens.training.dino.networks import MultiCropNetwork
from diffusionlens.training.dino.optimizer import (
    adamw,
    clip_global,
    clip_per_parameter,
    freeze_last_layer,
    gradient_norm,
    parameter_groups,
    set_schedule,
)


def network(norm_last_layer: bool = False) -> MultiCropNetwork:
    torch.manual_seed(0)
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=32, depth=1, num_heads=2, reg_tokens=4, init_values=0.1
    )
    return MultiCropNetwork(
        vit, DINOHead(32, 20, hidden=24, bottleneck=8, norm_last_layer=norm_last_layer, use_bn=True)
    )


def test_groups_are_those_of_dino() -> None:
    net = network()
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decayed, exempt = parameter_groups(net)
    assert (decayed["name"], exempt["name"], exempt["weight_decay"]) == ("decayed", "exempt", 0)
    assert {names[id(parameter)] for parameter in decayed["params"]} == {
        "backbone.cls_token",
        "backbone.reg_token",
        "backbone.pos_embed",
        "backbone.patch_embed.proj.weight",
        "backbone.blocks.0.attn.qkv.weight",
        "backbone.blocks.0.attn.proj.weight",
        "backbone.blocks.0.mlp.fc1.weight",
        "backbone.blocks.0.mlp.fc2.weight",
        "head.mlp.0.weight",
        "head.mlp.3.weight",
        "head.mlp.6.weight",
        "head.last_layer.parametrizations.weight.original0",
        "head.last_layer.parametrizations.weight.original1",
    }
    left = {names[id(parameter)] for parameter in exempt["params"]}
    assert {"backbone.blocks.0.ls1.gamma", "backbone.norm.weight", "head.mlp.1.weight", "head.mlp.0.bias"} < left
    assert len(decayed["params"]) + len(exempt["params"]) == len(names)


def test_fixed_gains_are_in_no_group() -> None:
    net = network(norm_last_layer=True)
    gains = net.head.last_layer.parametrizations.weight.original0  # type: ignore[union-attr]
    assert all(parameter is not gains for group in parameter_groups(net) for parameter in group["params"])


def test_adamw_steps_against_float64() -> None:
    """Loshchilov and Hutter's algorithm 2 for a matrix (decayed) and its bias (exempt), betas .9 and .999, epsilon 1e-8."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = adamw(layer)
    wanted = {name: value.detach().double().numpy().copy() for name, value in layer.named_parameters()}
    first = {name: np.zeros_like(value) for name, value in wanted.items()}
    second = {name: np.zeros_like(value) for name, value in wanted.items()}
    for step, (lr, decay) in enumerate([(0.1, 0.04), (0.05, 0.4), (0.02, 0.9)], 1):
        set_schedule(optimizer, lr, decay)
        for name, parameter in layer.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            g = parameter.grad.double().numpy()
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            wanted[name] *= 1 - lr * (decay if name == "weight" else 0)
            unbiased = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
            wanted[name] -= lr * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        optimizer.step()
    for name, parameter in layer.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), wanted[name], rtol=1e-5, atol=1e-7)


def with_gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes, scales = [(4, 5), (7,), (2, 3, 2), (1,)], [10.0, 0.1, 2.0, 1.0]
    parameters: list[Tensor] = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter, scale in zip(parameters, scales, strict=True):
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
    return [*parameters, nn.Parameter(torch.zeros(3))]  # the last has no gradient


def norms(parameters: list[Tensor]) -> list[float]:
    return [float(np.linalg.norm(p.grad.double().numpy())) for p in parameters if p.grad is not None]


@pytest.mark.parametrize("largest", [0.3, 3.0])
def test_clipping_each_parameter(largest: float) -> None:
    parameters = with_gradients()
    before = [parameter.grad.double().numpy() for parameter in parameters[:4]]  # type: ignore[union-attr]
    whole = clip_per_parameter(parameters, largest)
    assert float(whole) == pytest.approx(np.linalg.norm(np.concatenate([g.ravel() for g in before])))
    for parameter, g in zip(parameters, before, strict=False):
        factor = min(1, largest / (np.linalg.norm(g) + 1e-6))
        np.testing.assert_allclose(parameter.grad.numpy(), factor * g, rtol=1e-5)  # type: ignore[union-attr]
    assert max(norms(parameters)) == pytest.approx(largest, rel=1e-5)
    assert min(norms(parameters)) < largest / 1.01


def test_clipping_all_together() -> None:
    parameters = with_gradients()
    before = norms(parameters)
    whole = float(np.linalg.norm(before))
    assert float(gradient_norm(parameters)) == pytest.approx(whole)
    assert float(clip_global(parameters, 3.0)) == pytest.approx(whole)
    np.testing.assert_allclose(norms(parameters), np.array(before) * 3 / whole, rtol=1e-5)


def test_a_frozen_last_layer_neither_moves_nor_decays() -> None:
    net = network()
    optimizer = adamw(net)
    set_schedule(optimizer, 0.1, 0.4)
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    net([torch.randn(2, 3, 32, 32)]).square().sum().backward()
    freeze_last_layer(net)
    optimizer.step()
    still = {name for name, parameter in net.named_parameters() if torch.equal(parameter, before[name])}
    assert still == {f"head.last_layer.parametrizations.weight.original{i}" for i in (0, 1)}
