"""One forward pass of any timm ViT -> tokens of every layer, and the attention of every layer as a stream.

Attention is taken where it happens: a `TorchFunctionMode` sees the call to an attention function while a block
runs, computes the weights explicitly, hands them to the observers and goes on with weights @ values. So the
statistics describe the very weights that made the output, a model needs no changing, fused attention stays on for
whoever does not look, and no layer's attention outlives its call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from diffusionlens.attention.functional import entmax15_attention, entmax15_into, sparsemax, sparsemax_attention
from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Backbone, Tokens

Stream = Literal["raw", "normed"]

# Weights and logits of so many pictures at a time: few enough that both stay in a CPU's last cache (8 MB each), enough
# that starting the operations does not matter. One picture at least, whatever its size.
_BLOCK_ELEMENTS = 2_000_000


@dataclass(frozen=True)
class AttentionBlock:
    """The attention of one layer (1..depth) for the pictures `pictures` of the batch.

    `weights` [b,heads,N,N] float32, rows are queries and sum to 1; `logits` the scaled and biased scores that they
    were made from; `normalizer` names the map from logits to weights ("softmax", "entmax15", "sparsemax"). Both live in
    buffers that the next block overwrites: an observer that keeps something keeps a copy. `values` [b,heads,N,D] is what
    the weights are applied to, `keys` [b,heads,N,D] what queries are compared with.
    """

    layer: int
    pictures: slice
    weights: Tensor
    logits: Tensor
    normalizer: str
    values: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    keys: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)


Observer = Callable[[AttentionBlock], None]


@dataclass
class Trace:
    """Tokens of the captured layers of one batch. Layer 0 is the input of the first block, l the output of block l.

    `changed` holds the traces of pictures that a diagnostic has changed (`Diagnostic.changed_pictures`), by name.
    """

    backbone: Backbone
    raw: dict[int, Tensor]
    changed: Mapping[str, "Trace"] = field(default_factory=dict, repr=False)
    _cache: dict[tuple[int, str, bool], Tensor] = field(default_factory=dict, repr=False)

    def tokens(self, layer: int, norm: Stream = "normed") -> Tokens:
        """The tokens of `layer` by kind, raw (residual stream) or through the model's final norm; float32."""
        return self.backbone.split(self._stream(layer, norm))

    def unit_tokens(self, layer: int, norm: Stream = "normed") -> Tokens:
        """`tokens` scaled to L2 norm 1, so that a dot product is a cosine; a zero token stays zero."""
        key = (layer, norm, True)
        if key not in self._cache:
            self._cache[key] = functional.normalize(self._stream(layer, norm), dim=-1)
        return self.backbone.split(self._cache[key])

    def prenorm(self, layer: int) -> Tensor | None:
        """Input [B,N,D] of block `layer`'s first norm, or None where that is not captured or the block is post-norm."""
        return self.raw.get(layer - 1) if self.backbone.first_norm(layer) is not None else None

    def _stream(self, layer: int, norm: Stream) -> Tensor:
        key = (layer, norm, False)
        if key not in self._cache:
            tokens = self.raw[layer].float()
            self._cache[key] = self.backbone.normed(tokens) if norm == "normed" else tokens
        return self._cache[key]


@dataclass(frozen=True)
class _Request:
    """A call to an attention function."""

    normalizer: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float | None
    dropout: float = 0.0
    causal: bool = False


def _softmax_request(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Request:
    return _Request("softmax", query, key, value, attn_mask, scale, dropout_p, is_causal)


def _sparse_request(normalizer: str) -> Callable[..., _Request]:
    def request(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None = None,
        attn_mask: Tensor | None = None,
        *,
        impl: str = "auto",
    ) -> _Request:
        return _Request(normalizer, q, k, v, attn_mask, scale)

    return request


_ATTENTIONS: dict[Any, Callable[..., _Request]] = {
    functional.scaled_dot_product_attention: _softmax_request,
    entmax15_attention: _sparse_request("entmax15"),
    sparsemax_attention: _sparse_request("sparsemax"),
}

# Logits to weights, written into the second argument.
_NORMALIZERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "softmax": lambda logits, weights: torch.softmax(logits, -1, out=weights),
    "entmax15": entmax15_into,
    "sparsemax": lambda logits, weights: weights.copy_(sparsemax(logits)),
}


class _AttentionTap(TorchFunctionMode):
    """Computes attention explicitly inside blocks, for the observers; everything else passes through."""

    def __init__(self, observers: Sequence[Observer], batch: int) -> None:
        super().__init__()
        self.observers = observers
        self.batch = batch
        self.layer: int | None = None
        self.tokens = 0
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.layer is None or func not in _ATTENTIONS:
            return func(*args, **(kwargs or {}))
        request = _ATTENTIONS[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():  # nothing below is an attention call
            return self._attention(self.layer, request)

    def _attention(self, layer: int, request: "_Request") -> Tensor:
        query, key, value, attn_mask = request.query, request.key, request.value, request.mask
        self.calls += 1
        if query.shape[0] != self.batch or query.shape[-2] != self.tokens or key.shape[-2] != self.tokens:
            raise InputError(
                f"attention of block {layer} works on {query.shape[-2]} x {key.shape[-2]} tokens of {query.shape[0]} "
                f"windows, not on all {self.tokens} tokens of {self.batch} pictures; windowed and pooled attention is "
                f"not measured: leave out the analysis 'sparsity' (--analyses pib,norms,similarity,pca)"
            )
        if request.dropout:
            raise InputError(f"attention of block {layer} drops weights at random; put the model into eval mode")
        if key.shape[1] != query.shape[1]:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if request.causal:
            attn_mask = torch.ones(self.tokens, self.tokens, dtype=torch.bool, device=query.device).tril()
        factor = query.shape[-1] ** -0.5 if request.scale is None else request.scale
        step = max(1, _BLOCK_ELEMENTS // (query.shape[1] * self.tokens**2))
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        # Two buffers serve all pictures of the layer; fresh ones for each would cost more than the products.
        buffers = query.new_empty(
            2, min(step, self.batch), query.shape[1], self.tokens, self.tokens, dtype=torch.float32
        )
        for start in range(0, self.batch, step):
            pictures = slice(start, min(start + step, self.batch))
            logits, weights = buffers[:, : pictures.stop - start]
            torch.matmul(query[pictures].float() * factor, key[pictures].float().transpose(-1, -2), out=logits)
            if attn_mask is not None:
                logits = _masked(logits, attn_mask, pictures)
            _NORMALIZERS[request.normalizer](logits, weights)
            for observer in self.observers:
                values, keys = value[pictures], key[pictures]
                observer(AttentionBlock(layer, pictures, weights, logits, request.normalizer, values, keys))
            output[pictures] = (weights @ value[pictures].float()).to(output.dtype)
        return output


def _masked(logits: Tensor, mask: Tensor, pictures: slice) -> Tensor:
    part = mask[pictures] if mask.dim() == 4 and mask.shape[0] > 1 else mask
    return logits.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else logits + part


def capture(
    backbone: Backbone,
    images: Tensor,
    observers: Sequence[Observer] = (),
    layers: Collection[int] | None = None,
) -> Trace:
    """Runs `backbone` once over `images` [B,3,H,W] (its present size) and keeps the tokens of `layers` (default all).

    Each observer gets every layer's attention, some pictures at a time, in the order of the layers. All hooks are
    gone when this returns or raises.

    Raises:
        InputError: a block's attention was not seen, or not as one N x N map per head; the token count does not
            match the grid; the tokens are not finite.
    """
    wanted = set(range(backbone.depth + 1)) if layers is None else set(layers)
    raw: dict[int, Tensor] = {}
    tap = _AttentionTap(observers, images.shape[0])

    def before(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            tap.layer, tap.calls, tap.tokens = layer, 0, args[0].shape[1]
            if layer == 1 and 0 in wanted:
                raw[0] = args[0].detach()

        return hook

    def after(layer: int) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(block: nn.Module, _: tuple[Any, ...], output: Any) -> None:
            tap.layer = None
            if observers and tap.calls != 1:
                raise InputError(_unseen(backbone, layer, block, tap.calls))
            if layer in wanted:
                raw[layer] = (output[0] if isinstance(output, tuple) else output).detach()

        return hook

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        for layer, block in enumerate(backbone.blocks, start=1):
            stack.callback(block.register_forward_pre_hook(before(layer)).remove)
            stack.callback(block.register_forward_hook(after(layer)).remove)
        if observers:
            stack.enter_context(tap)
        backbone.model.forward_features(images)  # type: ignore[operator]
    _check(backbone, raw)
    return Trace(backbone, raw)


def _unseen(backbone: Backbone, layer: int, block: nn.Module, calls: int) -> str:
    seen = "no call" if calls == 0 else f"{calls} calls"
    return (
        f"{backbone.label}: {seen} to scaled_dot_product_attention in block {layer} ({type(block).__name__}); wanted "
        f"exactly one, so its attention can't be measured: leave out 'sparsity' (--analyses pib,norms,similarity,pca)"
    )


def _check(backbone: Backbone, raw: dict[int, Tensor]) -> None:
    for layer, tokens in raw.items():
        height, width = backbone.grid
        expected = backbone.prefix + height * width
        if tokens.dim() != 3 or tokens.shape[1] != expected:
            raise InputError(
                f"{backbone.label}: layer {layer} has the shape {tuple(tokens.shape)}; wanted {expected} tokens "
                f"({backbone.prefix} + {height} x {width} patches): the model has no single token grid"
            )
    last = max(raw, default=None)
    if last is not None and not torch.isfinite(raw[last]).all():
        raise InputError(
            f"{backbone.label}: tokens of layer {last} are not finite (NaN or infinity); the weights or the pictures "
            f"are damaged: check both with `diffusionlens check`"
        )
