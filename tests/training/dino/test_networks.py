"""Student and teacher: grouping, positions by DINO's rule, separate storage, and the moving average in float64."""

from copy import deepcopy

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from diffusionlens.errors import InputError
from diffusionlens.models.positions import resize_positions
from diffusionlens.training.dino.head import DINOHead
from diffusionlens.training.dino.initialisation import initialise
from diffusionlens.training.dino.networks import MultiCropNetwork, make_teacher, update_teacher
from tests.models.test_positions import matrix


def backbone(**options: object) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224",
        **{"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 0, **options},
    )


def network(**options: object) -> MultiCropNetwork:
    torch.manual_seed(0)
    made = MultiCropNetwork(backbone(**options), DINOHead(32, 20, hidden=24, bottleneck=8))
    initialise(made.backbone, "fan_in")
    nn.init.normal_(made.backbone.pos_embed)  # type: ignore[arg-type]
    return made.eval()


def views(*sizes: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 3, size, size, generator=generator) for size in sizes]


def test_views_come_out_in_their_order_however_they_are_grouped() -> None:
    net, given = network(), views(32, 32, 16, 16, 16, 32)
    passes: list[tuple[int, ...]] = []
    net.backbone.patch_embed.register_forward_pre_hook(lambda _, x: passes.append(tuple(x[0].shape)))  # type: ignore[union-attr]
    together = net(given)
    assert passes == [(4, 3, 32, 32), (6, 3, 16, 16), (2, 3, 32, 32)]
    torch.testing.assert_close(together, torch.cat([net([view]) for view in given]))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("grid", [(2, 2), (2, 3), (6, 6)])
def test_positions_follow_the_rule_of_dino(dynamic: bool, registers: int, grid: tuple[int, int]) -> None:
    """Against timm built for the local size, its table filled by cubic convolution written out in float64."""
    size = (8 * grid[0], 8 * grid[1])
    options = {"reg_tokens": registers, "no_embed_class": registers > 0}
    net = network(dynamic_img_size=dynamic, **options)
    table = net.backbone.pos_embed.detach()  # type: ignore[union-attr, operator]
    prefix = table.shape[1] - 16
    assert prefix == (0 if registers else 1)
    rows, columns = (matrix(4, length, "dino") for length in grid)
    small = np.einsum("ri,cj,ijd->rcd", rows, columns, table[0, prefix:].double().numpy().reshape(4, 4, 32))
    oracle = backbone(img_size=size, **options).eval()
    resized = torch.cat([table[0, :prefix], torch.from_numpy(small.reshape(-1, 32)).float()])[None]
    oracle.load_state_dict({**net.backbone.state_dict(), "pos_embed": resized})
    picture = torch.randn(2, 3, *size)
    wanted = oracle.forward_features(picture)[:, 0]  # type: ignore[operator]
    torch.testing.assert_close(net.features(picture), wanted, atol=1e-5, rtol=1e-4)
    # The antialiased rule would be another network.
    with torch.no_grad():
        by_timm = MultiCropNetwork(deepcopy(net.backbone), net.head, positions="timm").features(picture)
    assert (by_timm - wanted).norm() / wanted.norm() > 0.01  # a thousand times the tolerance


def test_views_that_are_no_whole_patches() -> None:
    with pytest.raises(ValueError, match="no whole patches"):
        network().features(torch.randn(2, 3, 20, 20))


def test_gradients_of_small_views_reach_the_table() -> None:
    """Against the chain rule: the resizing is linear, so its transpose carries the gradient back."""
    net = network()
    (picture,) = views(16)
    net.features(picture).square().sum().backward()
    gradient = net.backbone.pos_embed.grad  # type: ignore[union-attr]
    oracle = backbone(img_size=16).eval()
    small = resize_positions(net.backbone.pos_embed.detach(), (4, 4), (2, 2), "dino")  # type: ignore[operator, union-attr, arg-type]
    oracle.load_state_dict({**net.backbone.state_dict(), "pos_embed": small})
    oracle(picture).square().sum().backward()
    weights = torch.from_numpy(matrix(4, 2, "dino")).float()
    back = torch.einsum("ri,cj,rcd->ijd", weights, weights, oracle.pos_embed.grad[0, 1:].reshape(2, 2, 32))  # type: ignore[union-attr, index]
    torch.testing.assert_close(gradient[0, 1:].reshape(4, 4, 32), back, atol=1e-5, rtol=1e-3)  # type: ignore[index]
    torch.testing.assert_close(gradient[0, 0], oracle.pos_embed.grad[0, 0], atol=1e-5, rtol=1e-3)  # type: ignore[index, union-attr]


def test_the_names_are_those_of_dino() -> None:
    names = set(network().state_dict())
    assert {"backbone.cls_token", "backbone.pos_embed", "backbone.blocks.1.attn.qkv.weight", "head.mlp.4.bias"} < names
    assert {name.split(".")[0] for name in names} == {"backbone", "head"}


def test_the_feature_is_the_normed_cls_token_whatever_timm_pools() -> None:
    net = network(num_classes=7, global_pool="token")
    (picture,) = views(32)
    assert net([picture]).shape == (2, 20)
    torch.testing.assert_close(net.features(picture), net.backbone.forward_features(picture)[:, 0])  # type: ignore[operator, union-attr]


def test_without_a_cls_token() -> None:
    with pytest.raises(InputError, match="no CLS token"):
        MultiCropNetwork(backbone(class_token=False, global_pool="avg"), nn.Identity())


def teacher_of(student: MultiCropNetwork, **options: object) -> MultiCropNetwork:
    return make_teacher(student, backbone(**options), DINOHead(32, 20, hidden=24, bottleneck=8))


def test_the_teacher_equals_the_student_and_shares_nothing() -> None:
    student = network(drop_path_rate=0.5).train()
    teacher = teacher_of(student)
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    own, other = teacher.state_dict(), student.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1)
    assert not any(torch.equal(own[name], other[name]) for name in own)
    torch.testing.assert_close(teacher(views(32, 16)), teacher(views(32, 16)))  # no path is dropped
    with pytest.raises(ValueError, match="drops paths"):
        teacher_of(student, drop_path_rate=0.1)
    with pytest.raises(ValueError, match="share storage"):
        make_teacher(student, backbone(), student.head)


def test_moving_average_against_float64() -> None:
    torch.manual_seed(0)
    student = MultiCropNetwork(backbone(), DINOHead(32, 20, hidden=24, bottleneck=8, use_bn=True))
    teacher = make_teacher(student, backbone(), DINOHead(32, 20, hidden=24, bottleneck=8, use_bn=True))
    wanted = {name: value.detach().double().numpy() for name, value in teacher.named_parameters()}
    for step in range(20):
        momentum = 1 - 0.1 / (step + 1)
        with torch.no_grad():
            for name, parameter in student.named_parameters():
                if parameter.requires_grad:
                    parameter.normal_()
                wanted[name] = momentum * wanted[name] + (1 - momentum) * parameter.double().numpy()
        student.train()(views(32))  # moves the statistics of the batch norms
        update_teacher(student, teacher, momentum)
    for name, parameter in teacher.named_parameters():
        np.testing.assert_allclose(parameter.numpy(), wanted[name], atol=1e-6, err_msg=name)
    gains = teacher.head.last_layer.parametrizations.weight.original0  # type: ignore[union-attr]
    assert torch.equal(gains, torch.ones_like(gains))  # type: ignore[arg-type]
    buffers = dict(student.named_buffers())
    assert int(buffers["head.mlp.1.num_batches_tracked"]) == 20
    assert all(torch.equal(value, buffers[name]) for name, value in teacher.named_buffers())


def test_momentum_one_leaves_the_teacher_alone() -> None:
    student = network()
    teacher = teacher_of(student)
    before = deepcopy(teacher.state_dict())
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(3)
    update_teacher(student, teacher, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
