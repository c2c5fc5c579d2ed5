"""Statistics of attention rows: both implementations against float64 written out from the definitions."""

import numpy as np
import pytest
import torch
from entmax import entmax15
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffusionlens.analysis.sparsity.row_sums import RowSums, by_numba, by_torch, map_sums
from diffusionlens.capture import AttentionBlock


def block(tokens: int, std: float, normalizer: str = "softmax", seed: int = 0, pictures: int = 2) -> AttentionBlock:
    logits = torch.randn(pictures, 3, tokens, tokens, generator=torch.Generator().manual_seed(seed)) * std
    weights = logits.softmax(-1) if normalizer == "softmax" else entmax15(logits, dim=-1)
    return AttentionBlock(1, slice(0, pictures), weights, logits, normalizer)


def oracle(weights: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics of [..., n] float64, straight from their definitions; NaN for a row without weight."""
    n = weights.shape[-1]
    mass = weights.sum(-1, keepdims=True)
    p = weights / np.where(mass > 0, mass, np.nan)
    logs = np.log(np.where(p > 0, p, 1))
    ordered = np.sort(p, -1)
    with np.errstate(invalid="ignore", divide="ignore"):  # one key has no Hoyer sparsity
        hoyer = (np.sqrt(n) - np.abs(p).sum(-1) / np.sqrt((p**2).sum(-1))) / (np.sqrt(n) - 1)
    return {
        "support": (weights > 0).sum(-1),
        "entropy": -(p * logs).sum(-1),
        "hoyer": hoyer,
        "top1": ordered[..., -1],
        "top10": ordered[..., -10:].sum(-1),
    }


def statistics(sums: RowSums) -> dict[str, Tensor]:
    return {
        "support": sums.support,
        "entropy": sums.entropy(),
        "hoyer": sums.hoyer(),
        "top1": sums.top_mass(1),
        "top10": sums.top_mass(10),
    }


@pytest.mark.parametrize("implementation", [by_numba, by_torch])
@pytest.mark.parametrize("normalizer", ["softmax", "entmax15"])
@pytest.mark.parametrize(("tokens", "prefix"), [(197, 1), (37, 1), (20, 5), (12, 0), (7, 1)])
@pytest.mark.parametrize("std", [0.15, 1.0, 8.0])
def test_every_statistic_agrees_with_float64(implementation, normalizer, tokens, prefix, std) -> None:  # type: ignore[no-untyped-def]
    made = block(tokens, std, normalizer)
    patches = tokens - prefix
    generator = torch.Generator().manual_seed(1)
    distance = torch.rand(patches, patches, generator=generator) * 100
    objects = torch.rand(2, patches, generator=generator) > 0.5
    found = implementation(made, prefix, distance, objects)
    weights = made.weights.double().numpy()
    everything = found.patches
    if prefix:
        everything = everything + RowSums.of(made.weights[..., :prefix])
    for sums, expected in ((everything, oracle(weights)), (found.patches, oracle(weights[..., prefix:]))):
        for name, values in statistics(sums).items():
            np.testing.assert_allclose(values.numpy(), expected[name], rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(found.logit_std.numpy(), made.logits.double().numpy().std(-1), rtol=1e-5)
    far = (weights[..., prefix:, prefix:] * distance.double().numpy()).sum(-1)
    np.testing.assert_allclose(found.weighted_distance[..., prefix:].numpy(), far, rtol=1e-5, atol=1e-5)
    on_objects = (weights[..., prefix:] * objects[:, None, None].numpy()).sum(-1)
    np.testing.assert_allclose(found.on_objects.numpy(), on_objects, rtol=1e-5, atol=1e-6)


@given(
    patches=st.integers(1, 60),
    prefix=st.integers(0, 5),
    std=st.floats(0, 30),
    seed=st.integers(0, 999),
    ties=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_both_implementations_agree_with_float64(patches: int, prefix: int, std: float, seed: int, ties: bool) -> None:
    made = block(patches + prefix, std, seed=seed, pictures=1)
    if ties:
        logits = made.logits.round()
        made = AttentionBlock(1, made.pictures, logits.softmax(-1), logits, "softmax")
    distance, objects = torch.rand(patches, patches), torch.rand(1, patches) > 0.5
    fast, plain = (implementation(made, prefix, distance, objects) for implementation in (by_numba, by_torch))
    exact = oracle(made.weights.double().numpy()[..., prefix:])
    normal = (fast.patches.mass > 1e-35) | (fast.patches.mass == 0)
    for sums in (fast.patches, plain.patches):
        for name, values in statistics(sums).items():
            np.testing.assert_allclose(values[normal], exact[name][normal], rtol=1e-4, atol=1e-4, err_msg=name)
        entropy = sums.entropy()[~normal]
        assert ((entropy >= 0) & (entropy <= sums.support[~normal].log())).all()
    torch.testing.assert_close(fast.logit_std, plain.logit_std, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", [by_numba, by_torch])
@pytest.mark.parametrize("sink", [0.0, 30.0, 60.0, 80.0])
def test_what_a_sink_leaves_is_described_as_well(implementation, sink) -> None:  # type: ignore[no-untyped-def]
    """A first token that takes all but e^-80: the squares of the other weights are below float32's range."""
    logits = torch.randn(1, 3, 31, 31, generator=torch.Generator().manual_seed(0))
    logits[..., 0] += sink
    made = AttentionBlock(1, slice(0, 1), logits.softmax(-1), logits, "softmax")
    found = statistics(implementation(made, 1, torch.ones(30, 30), torch.ones(1, 30)).patches)
    exact = oracle(made.weights.double().numpy()[..., 1:])
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), exact[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_logits_with_a_large_common_offset() -> None:
    made = block(50, 1.0)
    shifted = AttentionBlock(1, made.pictures, made.weights, made.logits + 300, "softmax")
    near, far = (by_numba(b, 1, torch.ones(49, 49), torch.ones(2, 49)) for b in (made, shifted))
    torch.testing.assert_close(near.patches.entropy(), far.patches.entropy(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(near.logit_std, far.logit_std, rtol=1e-4, atol=1e-4)


def test_masked_keys_have_no_weight_and_no_logit() -> None:
    made = block(20, 1.0)
    logits = made.logits.clone()
    logits[..., 11:] = -torch.inf
    masked = AttentionBlock(1, made.pictures, logits.softmax(-1), logits, "softmax")
    found = map_sums(masked, 1, torch.ones(19, 19), torch.ones(2, 19))
    expected = oracle(masked.weights[..., 1:].double().numpy())
    np.testing.assert_allclose(found.patches.entropy().numpy(), expected["entropy"], rtol=1e-5)
    assert (found.patches.support == 10).all()
    np.testing.assert_allclose(found.logit_std.numpy(), logits[..., :11].double().numpy().std(-1), rtol=1e-5)


def test_a_row_without_weight_on_patches_gives_nan_not_a_number() -> None:
    weights = torch.zeros(1, 1, 12, 12)
    weights[..., 0] = 1
    made = AttentionBlock(1, slice(0, 1), weights, torch.zeros_like(weights), "entmax15")
    for implementation in (by_numba, by_torch):
        found = implementation(made, 1, torch.ones(11, 11), torch.ones(1, 11))
        assert torch.isnan(found.patches.entropy()).all()
        assert torch.isnan(found.patches.top_mass(10)).all()
        assert (found.patches.support == 0).all()
