"""timm's attention layers with another normaliser: the same parameters, names and forward code, one function exchanged.

timm's layers reach `torch.nn.functional.scaled_dot_product_attention` through their module's name `F`. A sparse layer is a
subclass whose methods are timm's own, bound to an `F` that has another function under that name. So every attention
that timm has (RoPE, gating, grouped queries, relative positions, attention inside a parallel block) gets its
sparse twin, and weights of one load into the other.
"""

from collections.abc import Iterator
from functools import cache
from types import FunctionType
from typing import Any

import torch
from timm.layers import Attention, AttentionRope
from torch import Tensor, nn
from torch.nn import functional

from diffusionlens.attention.functional import ALPHAS, entmax15_attention, sparsemax_attention
from diffusionlens.errors import InputError

_KERNEL = "scaled_dot_product_attention"


class _Functional:
    """`torch.nn.functional` with another attention function."""

    def __init__(self, attention: Any) -> None:
        self.scaled_dot_product_attention = attention

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)


def _sparse(function: Any, name: str) -> Any:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        if dropout_p:
            raise InputError(f"{name} attention has no dropout of its weights; set attn_drop (attn_drop_rate) to 0")
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        return function(query, key, value, scale, attn_mask)

    return attention


_FUNCTIONS = {
    1.5: _Functional(_sparse(entmax15_attention, "entmax15")),
    2.0: _Functional(_sparse(sparsemax_attention, "sparsemax")),
}
_PREFIXES = {1.5: "Entmax", 2.0: "Sparsemax"}


def _methods_with_attention(layer: type) -> dict[str, FunctionType]:
    """The methods of a class, inherited ones too, that call torch's attention through a global name `F`."""
    found: dict[str, FunctionType] = {}
    for owner in layer.__mro__:
        for name, method in vars(owner).items():
            if isinstance(method, FunctionType) and _KERNEL in method.__code__.co_names and "F" in method.__globals__:
                found.setdefault(name, method)
    return found


def sparse_layer(layer: Any, alpha: float = 1.5) -> Any:
    """The subclass of a timm attention layer class (or of a block that holds its attention itself) with alpha-entmax.

    Raises:
        InputError: alpha is not 1.5 or 2, or the class does not call torch's attention.
    """
    return _made(layer, float(alpha))


@cache
def _made(layer: Any, alpha: float) -> Any:
    if alpha not in _FUNCTIONS:
        raise InputError(f"alpha={alpha} has no sparse layer; wanted 1.5 or 2 (1 is the layer itself)")
    methods = _methods_with_attention(layer)
    if not methods:
        raise InputError(f"{layer.__name__} does not call scaled_dot_product_attention; it has no sparse twin")
    replaced: dict[str, Any] = {}
    for name, method in methods.items():
        scope = {**method.__globals__, "F": _FUNCTIONS[alpha]}
        twin = FunctionType(method.__code__, scope, method.__name__, method.__defaults__, method.__closure__)
        twin.__kwdefaults__ = method.__kwdefaults__
        twin.__doc__ = method.__doc__
        replaced[name] = twin

    def reduce(self: nn.Module) -> tuple[Any, ...]:  # a made class has no name that pickle could import
        return _blank, (layer, alpha), self.__dict__

    described = f"{layer.__name__} with {alpha:g}-entmax in place of softmax; parameters and names are the same."
    return type(
        _PREFIXES[alpha] + layer.__name__,
        (layer,),
        {
            **replaced,
            "alpha": alpha,
            "softmax_layer": layer,
            "__reduce__": reduce,
            "__doc__": described,
            "__module__": __name__,
        },
    )


def _blank(layer: type[nn.Module], alpha: float) -> nn.Module:
    sparse = sparse_layer(layer, alpha)
    return sparse.__new__(sparse)


EntmaxAttention = sparse_layer(Attention)
EntmaxAttentionRope = sparse_layer(AttentionRope)


def attention_modules(blocks: Any) -> Iterator[nn.Module]:
    """The modules inside the transformer blocks that compute attention."""
    for module in blocks.modules():
        if hasattr(type(module), "softmax_layer") or _methods_with_attention(type(module)):
            yield module


def alpha_of(module: nn.Module) -> float:
    """1 for softmax."""
    return float(type(module).alpha) if hasattr(type(module), "softmax_layer") else 1.0  # type: ignore[attr-defined]


def set_alpha(module: nn.Module, alpha: float) -> None:
    """Makes an attention module use alpha-entmax, in place: its class changes, parameters and hooks stay.

    Raises:
        InputError: alpha is none of 1, 1.5, 2, or the module drops attention weights at random.
    """
    if alpha not in ALPHAS:
        raise InputError(f"alpha={alpha} is not available; wanted one of {', '.join(f'{a:g}' for a in ALPHAS)}")
    plain = getattr(type(module), "softmax_layer", type(module))
    if alpha != 1:
        drop = getattr(module, "attn_drop", None)
        if float(getattr(drop, "p", drop or 0.0)) > 0:
            raise InputError(
                f"{plain.__name__} drops attention weights at random (attn_drop); sparse attention does not: set it to 0"
            )
        module.fused_attn = True  # type: ignore[assignment]  # timm's other branch computes softmax itself
    module.__class__ = plain if alpha == 1 else sparse_layer(plain, alpha)
