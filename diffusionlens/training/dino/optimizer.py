"""The optimiser's side of DINO: which parameters decay, clipping, the frozen last layer. Nothing waits for the device."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

DECAYED, EXEMPT = "decayed", "exempt"


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Two groups for an optimiser, told apart by their `name`: "decayed" and "exempt" (one-dimensional parameters and
    biases). DINO's rule goes by shape, so that position table, CLS token, registers and the last layer's gains, where these
    are trained, do decay. Parameters that need no gradient are in neither.
    """
    groups: dict[str, list[Tensor]] = {DECAYED: [], EXEMPT: []}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            groups[EXEMPT if parameter.ndim == 1 or name.endswith(".bias") else DECAYED].append(parameter)
    return [
        {"name": DECAYED, "params": groups[DECAYED]},
        {"name": EXEMPT, "params": groups[EXEMPT], "weight_decay": 0.0},
    ]


def adamw(network: nn.Module) -> torch.optim.AdamW:
    """AdamW with torch's betas and epsilon, as DINO; learning rate and decay are set before every step."""
    return torch.optim.AdamW(parameter_groups(network), lr=0.0, weight_decay=0.0)


def set_schedule(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Sets the learning rate of all groups, and the weight decay of the one that decays."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if group["name"] == DECAYED:
            group["weight_decay"] = weight_decay


def clip_per_parameter(parameters: Iterable[Tensor], largest: float) -> Tensor:
    """Scales every gradient down whose own L2 norm exceeds `largest` (DINO's way of clipping), in place.

    Returns:
        The norm of all gradients together before, 0-dimensional.
    """
    gradients = _gradients(parameters)
    norms = torch._foreach_norm(gradients)
    scales = (largest / (torch.stack(norms) + 1e-6)).clamp(max=1)
    torch._foreach_mul_(gradients, list(scales))
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_global(parameters: Iterable[Tensor], largest: float) -> Tensor:
    """Scales all gradients down by one factor where their common L2 norm exceeds `largest`, in place.

    Returns:
        That norm before, 0-dimensional.
    """
    return nn.utils.clip_grad_norm_(parameters, largest)


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, 0-dimensional."""
    return nn.utils.get_total_norm(_gradients(parameters))


def freeze_last_layer(network: nn.Module) -> None:
    """Drops the gradients of the head's last layer, so that the optimiser leaves it alone in this step: neither decay nor
    moments move. After clipping, before the step."""
    for name, parameter in network.named_parameters():
        if "last_layer" in name:
            parameter.grad = None


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
