"""timm's layers with another normaliser: their weights, their code, one function exchanged."""

import copy
import pickle

import pytest
import torch
from timm.layers import Attention, AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from diffusionlens.attention import EntmaxAttention, EntmaxAttentionRope
from diffusionlens.attention.layers import alpha_of, attention_modules, set_alpha, sparse_layer
from diffusionlens.errors import InputError
from tests.attention.oracle import entmax15_by_sorting


def tokens(count: int = 10, width: int = 32) -> torch.Tensor:
    return torch.randn(2, count, width, generator=torch.Generator().manual_seed(0))


def by_hand(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A plain attention layer written out, in float64."""
    layer, x = copy.deepcopy(layer).double(), x.double()
    batch, count, width = x.shape
    q, k, v = layer.qkv(x).reshape(batch, count, 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)  # type: ignore[operator]
    weights = entmax15_by_sorting(q @ k.transpose(-1, -2) * (width // layer.num_heads) ** -0.5)  # type: ignore[operator]
    return layer.proj((weights @ v).transpose(1, 2).flatten(2))  # type: ignore[operator]


def test_the_layer_is_attention_with_entmax() -> None:
    torch.manual_seed(0)
    layer = EntmaxAttention(32, num_heads=4, qkv_bias=True)
    nn.init.normal_(layer.qkv.weight, std=0.5)
    x = tokens()
    torch.testing.assert_close(layer(x), by_hand(layer, x).float(), atol=1e-5, rtol=1e-5)
    plain = Attention(32, num_heads=4, qkv_bias=True)
    plain.load_state_dict(layer.state_dict())
    assert list(plain.state_dict()) == list(layer.state_dict())
    assert not torch.allclose(plain(x), layer(x), atol=1e-3)


@pytest.mark.parametrize("sparse", [EntmaxAttentionRope, sparse_layer(EvaAttention)])
def test_rotary_layers(sparse: type[nn.Module]) -> None:
    """A rotation by nothing leaves plain attention; a real one has to reach queries and keys."""
    torch.manual_seed(1)
    layer = sparse(32, num_heads=4, num_prefix_tokens=1, qk_norm=False, scale_norm=False)
    nn.init.normal_(layer.qkv.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    x = tokens()
    still = torch.cat([torch.zeros(9, 8), torch.ones(9, 8)], -1)
    angles = torch.randn(9, 8, generator=torch.Generator().manual_seed(2))
    turned = torch.cat([angles.sin(), angles.cos()], -1)
    if getattr(layer, "q_bias", None) is None:
        torch.testing.assert_close(layer(x, rope=still), by_hand(layer, x).float(), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(layer(x, rope=turned), layer(x, rope=still), atol=1e-3)


def test_timms_own_code_runs_in_both_branches() -> None:
    """With the fused branch switched off, timm computes softmax itself: the sparse layer must not go there."""
    layer = Attention(32, num_heads=4)
    layer.fused_attn = False
    set_alpha(layer, 1.5)
    torch.testing.assert_close(layer(tokens()), by_hand(layer, tokens()).float(), atol=1e-5, rtol=1e-5)


def test_masks_and_causality_reach_the_operator() -> None:
    layer = EntmaxAttention(32, num_heads=4)
    nn.init.normal_(layer.qkv.weight, std=0.5)
    x = tokens()
    changed = x.clone()
    changed[:, 7:] += 1
    torch.testing.assert_close(layer(x, is_causal=True)[:, :7], layer(changed, is_causal=True)[:, :7])
    allowed = torch.ones(10, 10, dtype=torch.bool)
    allowed[:, 7:] = False
    torch.testing.assert_close(layer(x, attn_mask=allowed)[:, :7], layer(changed, attn_mask=allowed)[:, :7])
    assert not torch.allclose(layer(x)[:, :7], layer(changed)[:, :7], atol=1e-3)


def test_there_and_back_in_place() -> None:
    layer = Attention(32, num_heads=4)
    before, parameter = layer(tokens()), layer.qkv.weight
    calls: list[int] = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    assert alpha_of(layer) == 1
    set_alpha(layer, 1.5)
    assert type(layer) is EntmaxAttention
    assert (alpha_of(layer), layer.qkv.weight is parameter) == (1.5, True)
    assert not torch.allclose(layer(tokens()), before, atol=1e-4)
    set_alpha(layer, 2)
    assert type(layer).__name__ == "SparsemaxAttention"
    set_alpha(layer, 1)
    assert type(layer) is Attention
    assert torch.equal(layer(tokens()), before)
    assert len(calls) == 2


@pytest.mark.parametrize("layer", [EntmaxAttention, EntmaxAttentionRope, sparse_layer(EvaAttention)])
def test_copies_and_pickles(layer: type[nn.Module]) -> None:
    made = layer(32, num_heads=4, qk_norm=False, scale_norm=False).eval()
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is layer
        assert torch.equal(again(tokens()), made(tokens()))


def test_compiles_without_a_graph_break() -> None:
    layer = EntmaxAttention(32, num_heads=4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens()), layer(tokens()))


def test_modules_are_found_by_what_they_call() -> None:
    blocks = nn.ModuleList([nn.Sequential(Attention(8, 2), nn.Linear(8, 8)), nn.Sequential(AttentionRope(8, 2))])
    found = list(attention_modules(blocks))
    assert [type(module) for module in found] == [Attention, AttentionRope]
    for module in found:
        set_alpha(module, 1.5)
    assert list(attention_modules(blocks)) == found


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="Linear does not call scaled_dot_product_attention"):
        sparse_layer(nn.Linear)
    with pytest.raises(InputError, match=r"alpha=1.2 is not available"):
        set_alpha(Attention(8, 2), 1.2)
    with pytest.raises(InputError, match="drops attention weights at random"):
        set_alpha(Attention(8, 2, attn_drop=0.1), 1.5)
    with pytest.raises(InputError, match="entmax15 attention has no dropout"):
        EntmaxAttention(8, 2, attn_drop=0.1)(torch.zeros(1, 3, 8))
