"""The head against its formula in float64, and against files of DINO's own code."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import nn

from diffusionlens.training.dino.head import DINOHead
from diffusionlens.training.dino.loss import DINOLoss


def small_head(**options: bool) -> DINOHead:
    torch.manual_seed(0)
    return DINOHead(24, 40, hidden=16, bottleneck=8, **options)


def test_formula() -> None:
    head = small_head()
    for module in head.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias)
    x = torch.randn(5, 24)
    h = x.double().numpy()
    for place in (0, 2, 4):
        layer = head.mlp[place]  # type: ignore[index]
        h = h @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        h = h * (1 + erf(h / math.sqrt(2))) / 2 if place < 4 else h
    h /= np.linalg.norm(h, axis=-1, keepdims=True)
    v = head.last_layer.parametrizations.weight.original1.detach().double().numpy()
    wanted = h @ (v / np.linalg.norm(v, axis=1, keepdims=True)).T
    np.testing.assert_allclose(head(x).detach().numpy(), wanted, atol=1e-6)
    assert abs(wanted).max() <= 1  # cosines, as the gains are 1


@pytest.mark.parametrize("use_bn", [False, True])
def test_reads_the_old_names_of_weight_norm(use_bn: bool) -> None:
    """The old weight norm, as in DINO's files, makes the state dict; the scores must be its own."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.ModuleDict(
            {
                "mlp": small_head(use_bn=use_bn).mlp,
                "last_layer": nn.utils.weight_norm(nn.Linear(8, 40, bias=False)),
            }
        ).eval()
    assert {"last_layer.weight_g", "last_layer.weight_v"} < set(old.state_dict())
    head = small_head(use_bn=use_bn).eval()
    head.load_state_dict(old.state_dict(), strict=True)
    x = torch.randn(5, 24)
    wanted = old["last_layer"](nn.functional.normalize(old["mlp"](x), dim=-1))
    torch.testing.assert_close(head(x), wanted)


def test_gains_are_trained_only_on_request() -> None:
    for fixed in (True, False):
        gain = small_head(norm_last_layer=fixed).last_layer.parametrizations.weight.original0
        assert gain.shape == (40, 1)
        assert torch.equal(gain, torch.ones(40, 1))
        assert gain.requires_grad is not fixed


def test_published_size() -> None:
    """Of DINO's ViT-S/16: 5.51 M in the perceptron, 16.78 M in the last layer, 65,536 gains."""
    with torch.device("meta"):
        head = DINOHead(384, 65536)
    perceptron = 384 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 256 + 256
    assert sum(p.numel() for p in head.mlp.parameters()) == perceptron
    assert sum(p.numel() for p in head.last_layer.parameters()) == 65536 * 256 + 65536
    assert [type(m).__name__ for m in head.mlp] == ["Linear", "GELU", "Linear", "GELU", "Linear"]  # type: ignore[union-attr]


@pytest.mark.parametrize("likeness", [0.0, 0.5, 1.0])
def test_the_first_loss(likeness: float) -> None:
    """Untrained, scores are cosines with random directions: normal, of variance 1/bottleneck, and as alike for two views as
    their bottlenecks. So the loss starts at ln K + v / (2 s^2) - likeness v / (s t), v the variance, s and t the
    temperatures: near ln K in DINO's 256 dimensions, and not exactly there (10.7 in place of 11.1 for a ViT-S/16).
    """
    torch.manual_seed(0)
    head = DINOHead(64, 8192)
    common, own = torch.randn(1, 1, 64), torch.randn(4, 8, 64)
    features = (likeness * common + (1 - likeness) * own).flatten(0, 1)
    with torch.no_grad():
        scores = head(features)
        directions = nn.functional.normalize(head.mlp(features).double(), dim=-1).unflatten(0, (4, 8))
    pairs = [(directions[i] * directions[v]).sum(-1).mean() for i in range(2) for v in range(4) if v != i]
    wanted = math.log(8192) + 1 / 256 / (2 * 0.1**2) - float(sum(pairs)) / 6 / 256 / (0.1 * 0.04)
    loss, _ = DINOLoss(8192)(scores, scores[:16], 0.04)
    # Four standard deviations of the two means over K = 8192 prototypes, ln mean exp(x) and mean exp(y) x / mean exp(y), for x
    # and y of variance a and b and covariance r at most: sqrt((e^a - 1) / K) and sqrt(e^b (a + r^2) / K).
    a, b, r = 1 / 256 / 0.1**2, 1 / 256 / 0.04**2, 1 / 256 / (0.1 * 0.04)
    assert float(loss) == pytest.approx(
        wanted, abs=4 * (math.sqrt(math.expm1(a) / 8192) + math.sqrt(math.exp(b) * (a + r**2) / 8192))
    )


def test_one_layer() -> None:
    head = DINOHead(24, 40, bottleneck=8, layers=1)
    assert head(torch.randn(2, 24)).shape == (2, 40)
    assert "mlp.weight" in head.state_dict()
