"""How the weights of a backbone start, drawn from torch's global random numbers."""

from math import sqrt
from typing import Literal, get_args

import torch
from torch import nn

from diffusionlens.errors import InputError

Initialisation = Literal["dino", "fan_in"]
"""dino: truncated normal of std .02 for linear layers, position table and CLS token (timm starts its CLS token at 1e-6); the
patch projection as torch starts it. fan_in: normal of std fan_in^-.5, those that add to the residual stream divided by
sqrt(2 depth); it lets narrow models learn, for which .02 is far too small."""

_STD = 0.02
_INTO_RESIDUAL = (".attn.proj", ".mlp.fc2")


@torch.no_grad()
def initialise(backbone: nn.Module, how: Initialisation) -> None:
    """Draws the weights of a timm ViT anew, in place. Biases start at 0, norms at the identity; registers, layer scale
    and what else timm has stay as timm starts them.

    Raises:
        InputError: no such initialisation.
    """
    if how not in get_args(Initialisation):
        raise InputError(f"initialisation '{how}' does not exist; wanted one of {', '.join(get_args(Initialisation))}")
    depth = len(backbone.blocks)  # type: ignore[arg-type]
    for name, module in backbone.named_modules():
        if isinstance(module, nn.LayerNorm) or (isinstance(module, nn.Conv2d) and how == "dino"):
            module.reset_parameters()
        elif isinstance(module, nn.Linear | nn.Conv2d):
            if how == "dino":
                nn.init.trunc_normal_(module.weight, std=_STD)
            else:
                residual = sqrt(2 * depth) if name.endswith(_INTO_RESIDUAL) else 1
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5 / residual)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name in ("pos_embed", "cls_token"):
        if isinstance(token := getattr(backbone, name, None), nn.Parameter):
            nn.init.trunc_normal_(token, std=_STD)
