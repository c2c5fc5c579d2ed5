"""Optimisers for heads that are trained side by side, each with a learning rate of its own."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

Schedule = Literal["poly", "cosine"]
Optimizer = Literal["adamw", "sgd"]

_ADAM_EPS = 1e-8
_MOMENTUM = 0.9


def schedule_factor(step: int, total: int, warmup: int, schedule: Schedule, start: float = 1e-6) -> float:
    """The factor of the learning rate at `step` of `total`, counted from 0.

    Linear from `start` of the schedule's value to 1 over `warmup` steps, as in mmcv. poly: 1 - step/total; cosine: to 0.
    """
    share = step / total
    factor = 1 - share if schedule == "poly" else 0.5 * (1 + math.cos(math.pi * share))
    return factor * (1 - (1 - step / warmup) * (1 - start)) if step < warmup else factor


class SideBySide:
    """AdamW, or SGD with momentum 0.9, over tensors [kind, rate, ...] in which rates are heads of their own.

    The arithmetic of one head is that of torch.optim.AdamW (or SGD) with that head's rate.

    Args:
        rates: [R] base learning rates.
        clip: largest gradient norm of one head (its parts together, kind by kind), None for none. `kinds` then says which
            head every row of a parameter belongs to.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        rates: Tensor,
        weight_decay: float,
        *,
        optimizer: Optimizer = "adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        clip: float | None = None,
        kinds: Mapping[str, list[int]] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        self.rates, self.weight_decay, self.optimizer, self.betas, self.clip = (
            rates,
            weight_decay,
            optimizer,
            betas,
            clip,
        )
        self.kinds = dict(kinds or {})
        self.steps = 0
        self.first = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        self.second = (
            {name: torch.zeros_like(value) for name, value in self.parameters.items()} if optimizer == "adamw" else {}
        )

    @torch.no_grad()
    def step(self, loss: Tensor, factor: float) -> None:
        """Moves every head down the gradient of `loss`, the sum of the heads' own losses; rates times `factor`."""
        used = {name: value for name, value in self.parameters.items() if value.numel()}
        with torch.enable_grad():
            found = torch.autograd.grad(loss, list(used.values()), allow_unused=True)
        gradients = {name: grad for name, grad in zip(used, found, strict=True) if grad is not None}
        if self.clip is not None:
            self._clip(gradients)
        self.steps += 1
        for name, gradient in gradients.items():
            value = self.parameters[name]
            rate = (self.rates * factor).view(1, -1, *[1] * (value.dim() - 2))
            if self.optimizer == "sgd":
                gradient = gradient.add(value, alpha=self.weight_decay)
                momentum = self.first[name].mul_(_MOMENTUM).add_(gradient)
                value -= rate * momentum
                continue
            value *= 1 - rate * self.weight_decay
            one, two = self.betas
            mean = self.first[name].lerp_(gradient, 1 - one)
            square = self.second[name].mul_(two).addcmul_(gradient, gradient, value=1 - two)
            denominator = (square / (1 - two**self.steps)).sqrt_().add_(_ADAM_EPS)
            value -= rate / (1 - one**self.steps) * mean / denominator

    def _clip(self, gradients: dict[str, Tensor]) -> None:
        assert self.clip is not None
        heads = 1 + max(max(places, default=-1) for places in self.kinds.values())
        squares = torch.zeros(heads, len(self.rates), device=self.rates.device)
        for name, gradient in gradients.items():
            places = torch.tensor(self.kinds[name], device=squares.device)
            squares.index_add_(0, places, gradient.square().flatten(2).sum(-1))
        factors = (self.clip / (squares.sqrt() + 1e-6)).clamp(max=1)  # as torch.nn.utils.clip_grad_norm_
        for name, gradient in gradients.items():
            own = factors[self.kinds[name]]
            gradient *= own.view(*own.shape, *[1] * (gradient.dim() - 2))
