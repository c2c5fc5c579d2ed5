"""DINO's projection head: a perceptron to a bottleneck, L2-normalised, then a weight-normalised layer of prototypes."""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


class DINOHead(nn.Module):
    """Features [N,width] to scores of the prototypes [N,out_dim].

    Names and initial values are those of DINO's own code (truncated normal of std .02, gains 1); its files' `weight_g` and
    `weight_v` are read too. Source: Caron et al., ICCV 2021 (arXiv 2104.14294), section 3.2.

    Args:
        layers: linear layers down to the bottleneck.
        norm_last_layer: keep the gain of every prototype at 1.
        use_bn: batch norm before every GELU.
    """

    def __init__(
        self,
        width: int,
        out_dim: int,
        hidden: int = 2048,
        bottleneck: int = 256,
        layers: int = 3,
        norm_last_layer: bool = True,
        use_bn: bool = False,
    ) -> None:
        super().__init__()
        self.mlp = _perceptron(width, hidden, bottleneck, layers, use_bn)
        for module in self.mlp.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        # The parametrised weight norm, since the old one can neither be copied nor used without a warning.
        self.last_layer = weight_norm(nn.Linear(bottleneck, out_dim, bias=False))
        gain = self.last_layer.parametrizations["weight"].original0
        nn.init.ones_(gain)
        gain.requires_grad_(not norm_last_layer)

    def forward(self, features: Tensor) -> Tensor:
        return self.last_layer(functional.normalize(self.mlp(features), dim=-1))


def _perceptron(width: int, hidden: int, bottleneck: int, layers: int, use_bn: bool) -> nn.Module:
    if layers <= 1:
        return nn.Linear(width, bottleneck)
    parts: list[nn.Module] = []
    for inputs in [width] + [hidden] * (layers - 2):
        parts += [nn.Linear(inputs, hidden), *([nn.BatchNorm1d(hidden)] if use_bn else []), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(hidden, bottleneck))
