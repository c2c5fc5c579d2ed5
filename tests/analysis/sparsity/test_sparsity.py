"""Sparsity on planted attention, where every number is known."""

import math

import pandas as pd
import pytest
import torch
from torch import Tensor

from diffusionlens.analysis.sparsity.diagnostic import Sparsity, SparsityOptions
from diffusionlens.capture import AttentionBlock
from tests.analysis.planted import PATCH, planted_batch, planted_context, planted_trace

GRID = (3, 4)


def measured(
    weights: Tensor, logits: Tensor | None = None, registers: int = 0, boxes: list[Tensor] | None = None
) -> pd.DataFrame:
    """The table for one layer of planted weights [B,heads,N,N], entmax-like unless logits are given."""
    pictures, heads, tokens, _ = weights.shape
    trace = planted_trace(
        {0: torch.randn(pictures, tokens, 8), 1: torch.randn(pictures, tokens, 8)}, GRID, True, registers
    )
    trace.backbone.heads = heads
    batch = planted_batch(pictures, GRID, boxes=boxes)
    context = planted_context(trace, pictures, ["boxes"] if boxes else [])
    diagnostic = Sparsity(context, SparsityOptions())
    normalizer = "planted" if logits is None else "softmax"
    logits = torch.zeros_like(weights) if logits is None else logits
    diagnostic.observe(AttentionBlock(1, slice(0, pictures), weights, logits, normalizer), batch)
    diagnostic.update(trace, batch)
    return pd.DataFrame([vars(row) for row in diagnostic.table()])


def value(table: pd.DataFrame, metric: str, token: str, head: int | str = "mean") -> float:
    chosen = table[(table["metric"] == metric) & (table["token"] == token) & (table["head"].astype(str) == str(head))]
    assert len(chosen) == 1, (metric, token, head)
    return float(chosen["value"].iloc[0])


def test_exactly_k_equal_weights() -> None:
    """Every query gives 1/4 to CLS and to three patches."""
    weights = torch.zeros(2, 1, 13, 13)
    weights[..., [0, 2, 5, 9]] = 0.25
    table = measured(weights)
    for token in ("patch>all", "cls>all"):
        assert value(table, "support", token) == 4
        assert value(table, "density", token) == pytest.approx(4 / 13)
        assert value(table, "zero_share", token) == pytest.approx(9 / 13)
        assert value(table, "entropy", token) == pytest.approx(math.log(4), abs=1e-6)
        assert value(table, "entropy_normalized", token) == pytest.approx(math.log(4) / math.log(13), abs=1e-6)
        assert value(table, "effective_support", token) == pytest.approx(4, abs=1e-5)
        assert value(table, "top1_weight", token) == 0.25
        assert value(table, "top10_mass", token) == pytest.approx(1)
    assert value(table, "support", "patch>patch") == 3
    assert value(table, "entropy", "patch>patch") == pytest.approx(math.log(3), abs=1e-6)
    assert value(table, "mass", "patch>patch") == pytest.approx(0.75)
    assert value(table, "cls_weight", "patch>cls") == 0.25
    assert value(table, "cls_closed_share", "patch>cls") == 0
    assert value(table, "hoyer", "patch>all") == pytest.approx((13**0.5 - 4**0.5) / (13**0.5 - 1), abs=1e-6)


def test_heads_apart_and_averaged() -> None:
    weights = torch.zeros(1, 2, 13, 13)
    weights[:, 0, :, 3] = 1
    weights[:, 1] = 1 / 13
    table = measured(weights)
    assert value(table, "support", "patch>all", 0) == 1
    assert value(table, "support", "patch>all", 1) == 13
    assert value(table, "support", "patch>all") == 7
    assert value(table, "hoyer", "patch>all", 0) == pytest.approx(1)
    assert value(table, "hoyer", "patch>all", 1) == pytest.approx(0, abs=1e-6)


def test_closed_to_cls() -> None:
    weights = torch.zeros(1, 1, 13, 13)
    weights[..., 1] = 1
    weights[:, :, 1:4, 0] = 0.5  # three of twelve patches look at CLS
    weights[:, :, 1:4, 1] = 0.5
    table = measured(weights)
    assert value(table, "cls_closed_share", "patch>cls") == pytest.approx(9 / 12)
    assert value(table, "cls_weight", "patch>cls") == pytest.approx(3 * 0.5 / 12)


def test_mean_distance_is_in_pixels_and_renormalised_over_patches() -> None:
    """Every patch gives 0.6 to CLS and 0.4 to the first patch: the mean distance is that to the first patch."""
    weights = torch.zeros(1, 1, 13, 13)
    weights[..., 0], weights[..., 1] = 0.6, 0.4
    expected = sum(math.hypot(row * PATCH[0], column * PATCH[1]) for row in range(3) for column in range(4)) / 12
    assert value(measured(weights), "mean_distance", "patch>patch") == pytest.approx(expected, rel=1e-6)


def test_a_patch_that_sees_only_cls_has_no_distance() -> None:
    weights = torch.zeros(1, 1, 13, 13)
    weights[..., 0] = 1
    weights[:, :, 1, 0], weights[:, :, 1, 2] = 0, 1  # only the first patch looks at a patch, its right neighbour
    assert value(measured(weights), "mean_distance", "patch>patch") == pytest.approx(PATCH[1])


def test_weight_between_object_and_background() -> None:
    """The box covers the first column (3 of 12 patches); all weight goes to patch 0, which is on the object."""
    weights = torch.zeros(1, 1, 13, 13)
    weights[..., 1] = 0.7
    weights[..., 2] = 0.3
    box = torch.tensor([[0.0, 0.0, PATCH[1], 3 * PATCH[0]]])
    table = measured(weights, boxes=[box])
    assert value(table, "background_to_object", "patch>patch") == pytest.approx(0.7)
    assert value(table, "object_to_background", "patch>patch") == pytest.approx(0.3)


def test_registers_are_keys_of_their_own() -> None:
    weights = torch.zeros(1, 1, 15, 15)
    weights[..., 1] = 0.5  # a register
    weights[..., 3] = 0.5  # the first patch
    table = measured(weights, registers=2)
    assert value(table, "mass", "patch>register") == 0.5
    assert value(table, "zero_share", "patch>register") == 0.5
    assert value(table, "mass", "patch>patch") == 0.5
    assert value(table, "support", "register>all") == 2
    assert value(table, "cls_weight", "patch>cls") == 0


def test_gaussian_logits_have_the_documented_entmax_support() -> None:
    """The reading aid in docs/definitions.md: 197 logits of std 0.5 / 1 / 2 / 4."""
    from entmax import entmax15

    from diffusionlens.analysis.sparsity.row_sums import RowSums

    for std, expected in ((0.5, 34), (1, 13.5), (2, 5.65), (4, 2.85)):
        logits = torch.randn(3000, 197, generator=torch.Generator().manual_seed(0)) * std
        support = RowSums.of(entmax15(logits, dim=-1)).support.mean()
        assert float(support) == pytest.approx(expected, rel=0.025)


def test_logit_std() -> None:
    logits = torch.randn(1, 1, 13, 13, generator=torch.Generator().manual_seed(0)) * 2
    table = measured(logits.softmax(-1), logits)
    expected = logits[:, :, 1:].double().numpy().std(-1).mean()
    assert value(table, "logit_std", "patch>all") == pytest.approx(float(expected), rel=1e-5)
