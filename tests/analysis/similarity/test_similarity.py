"""`similarity` on planted tokens, against loops over token pairs in float64."""

import numpy as np
import pytest
import torch
from scipy.linalg import svdvals
from scipy.stats import entropy
from torch import Tensor, nn

from diffusionlens.analysis.similarity.cka import debiased_cka
from diffusionlens.analysis.similarity.diagnostic import Similarity, SimilarityOptions
from diffusionlens.analysis.similarity.dse import dse_code, dse_paper
from diffusionlens.capture import Trace
from diffusionlens.data.sample import Batch
from diffusionlens.results import Row
from tests.analysis.planted import feed_planted, joined, patch_mask, planted_batch, planted_context, planted_trace

GRID = (4, 6)
WIDTH = 12
PICTURES = 10
SMALL = SimilarityOptions(dse_tokens=480)


def _tokens(seed: int, pictures: int = PICTURES, prefix: int = 2, grid: tuple[int, int] = GRID) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(WIDTH, generator=generator)
    return mean + 2 * torch.randn(pictures, prefix + grid[0] * grid[1], WIDTH, generator=generator)


def _norm(seed: int, kind: type[nn.Module] = nn.LayerNorm) -> nn.Module:
    norm = kind(WIDTH)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=0.5, generator=torch.Generator().manual_seed(seed))
    return norm


def _planted(layers: int = 3, pictures: int = PICTURES) -> Trace:
    """CLS, one register and patches, a final norm and a first norm in every block."""
    raw = {layer: _tokens(layer, pictures) for layer in range(layers)}
    return planted_trace(raw, GRID, registers=1, norm=_norm(7), first_norms=[_norm(8), _norm(9, nn.RMSNorm)])


def _masks(pictures: int = PICTURES) -> list[Tensor]:
    labels = torch.randint(0, 3, (pictures, *GRID), generator=torch.Generator().manual_seed(5))
    labels[:, 0] = 255
    return [patch_mask(own) for own in labels]


def _run(
    trace: Trace,
    batch: Batch,
    provides: set[str],
    size: int = 4,
    options: SimilarityOptions = SMALL,
    layers: list[int] | None = None,
) -> Similarity:
    diagnostic = Similarity(planted_context(trace, len(batch), provides, layers), options)
    feed_planted(diagnostic, trace, batch, size)
    diagnostic.finish()
    return diagnostic


def _values(rows: list[Row], layer: int) -> dict[str, float]:
    return {row.metric: row.value for row in rows if row.layer == layer}


def _assert_same(rows: list[Row], others: list[Row]) -> None:
    key = [(row.metric, row.layer, row.token, row.n) for row in rows]
    assert key == [(row.metric, row.layer, row.token, row.n) for row in others]
    for row, other in zip(rows, others, strict=True):
        assert row.value == pytest.approx(other.value, rel=1e-5, abs=1e-6), row
        if row.low is not None:
            assert (row.low, row.high) == pytest.approx((other.low, other.high), rel=1e-5, abs=1e-6), row


def _unit(tokens: np.ndarray) -> np.ndarray:
    return tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)


def _float64(trace: Trace, layer: int, norm: nn.Module | None) -> np.ndarray:
    """The tokens of a layer through a norm, all in float64."""
    tokens = trace.raw[layer].double()
    if norm is not None:
        with torch.no_grad():
            tokens = norm.double()(tokens)
            norm.float()
    return tokens.numpy()


def _oracle(tokens: np.ndarray, masks: list[Tensor] | None) -> dict[str, float]:
    """Every metric of one layer that is a mean over pictures, by loops over pairs; tokens [B,N,D] with two prefix tokens."""
    found: dict[str, list[float]] = {
        name: [] for name in ("cls_patch_cos", "patch_patch_cos", "lds", "cds", "rmsc", "srss")
    }
    for place, picture in enumerate(_unit(tokens)):
        cls, patches = picture[0], picture[2:]
        labels = None if masks is None else masks[place][2::4, 2::4].flatten().tolist()
        pairs, same, other = [], [], []
        for i in range(len(patches)):
            for j in range(len(patches)):
                if i == j:
                    continue
                cosine = float(patches[i] @ patches[j])
                pairs.append((abs(i // GRID[1] - j // GRID[1]) + abs(i % GRID[1] - j % GRID[1]), cosine))
                if labels is not None and 255 not in (labels[i], labels[j]):
                    (same if labels[i] == labels[j] else other).append(cosine)
        by_distance = {d: np.mean([c for e, c in pairs if e == d]) for d in range(1, GRID[0] + GRID[1] - 1)}
        far = np.mean([c for d, c in pairs if d >= 2])  # half of the grid's mean side of 5, rounded down
        found["cls_patch_cos"].append(float((patches @ cls).mean()))
        found["patch_patch_cos"].append(float(np.mean([c for _, c in pairs])))
        found["lds"].append(float(by_distance[1] - far))
        found["cds"].append(-float(np.polyfit(range(1, 9), [by_distance[d] for d in range(1, 9)], 1)[0]))
        found["rmsc"].append(float(np.sqrt(((patches - patches.mean(0)) ** 2).sum(1).mean())))
        if labels is not None:
            found["srss"].append(float(np.mean(same) - np.mean(other)))
    return {name: float(np.mean(values)) for name, values in found.items() if values}


@pytest.mark.parametrize("stream", ["normed", "raw"])
def test_means_over_pictures_equal_the_loops_over_pairs(stream: str) -> None:
    trace, masks = _planted(), _masks()
    options = SimilarityOptions(tokens=stream, dse_tokens=480)  # type: ignore[arg-type]
    rows = _run(trace, planted_batch(PICTURES, GRID, masks=masks), {"masks"}, options=options).table()
    for layer in trace.raw:
        norm = trace.backbone.norm if stream == "normed" else None
        values = _values(rows, layer)
        for metric, expected in _oracle(_float64(trace, layer, norm), masks).items():
            assert values[metric] == pytest.approx(expected, abs=2e-6), (metric, layer)
    intervals = [row for row in rows if row.metric in ("lds", "srss", "cls_patch_cos", "cls_patch_cos_postnorm")]
    assert all(row.low is not None and row.low < row.value < row.high and row.n == PICTURES for row in intervals)  # type: ignore[operator]


def test_prenorm_and_postnorm_describe_the_input_of_the_block() -> None:
    trace = _planted()
    rows = _run(trace, planted_batch(PICTURES, GRID), set()).table()
    assert "cls_patch_cos_prenorm" not in _values(rows, 0)
    for layer in (1, 2):
        values = _values(rows, layer)
        for metric, norm in (("prenorm", None), ("postnorm", trace.backbone.first_norm(layer))):
            unit = _unit(_float64(trace, layer - 1, norm))
            expected = np.mean([picture[2:] @ picture[0] for picture in unit])
            assert values[f"cls_patch_cos_{metric}"] == pytest.approx(expected, abs=2e-6)


def test_srss_by_boxes_and_its_token() -> None:
    boxes = [torch.tensor([[4.0, 0, 12, 8]])] * (PICTURES - 1) + [torch.zeros(0, 4)]
    rows = _run(_planted(), planted_batch(PICTURES, GRID, boxes=boxes), {"boxes"}).table()
    inside = torch.zeros(GRID)
    inside[0:2, 1:3] = 1
    trace = _planted()
    tokens = _float64(trace, 1, trace.backbone.norm)[:-1]
    (row,) = [row for row in rows if row.metric == "srss" and row.layer == 1]
    assert row.token == "boxes"
    assert row.n == PICTURES - 1  # a picture of one region has no pairs across
    assert row.value == pytest.approx(_oracle(tokens, [patch_mask(inside)] * (PICTURES - 1))["srss"], abs=2e-6)


def test_a_picture_without_a_mask_does_not_count_as_one_with_boxes() -> None:
    masks: list[Tensor | None] = list(_masks())
    masks[3] = None
    boxes = [torch.tensor([[4.0, 0, 12, 8]])] * PICTURES
    batch = planted_batch(PICTURES, GRID, boxes=boxes, masks=masks)  # type: ignore[arg-type]
    rows = _run(_planted(), batch, {"masks", "boxes"}).table()
    assert {(row.token, row.n) for row in rows if row.metric == "srss"} == {("masks", PICTURES - 1)}


def test_identical_tokens() -> None:
    raw = {0: torch.ones(3, 1 + 24, WIDTH) * torch.tensor([1.0, 2.0, 5.0])[:, None, None]}
    values = _values(_run(planted_trace(raw, GRID), planted_batch(3, GRID), set()).table(), 0)
    expected = {"cls_patch_cos": 1, "patch_patch_cos": 1, "lds": 0, "cds": 0, "rmsc": 0, "effective_rank": 1}
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert "cka_cls_patchmean" not in values  # three pictures are too few for the unbiased estimator


def test_orthogonal_tokens() -> None:
    tokens = torch.cat([torch.zeros(4, 1, 30), torch.eye(24, 30).expand(4, 24, 30)], 1)
    tokens[:, 0, 29] = 1
    values = _values(_run(planted_trace({0: tokens}, GRID), planted_batch(4, GRID), set()).table(), 0)
    expected = {"cls_patch_cos": 0, "patch_patch_cos": 0, "lds": 0, "cds": 0, "effective_rank": 24}
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert values["rmsc"] == pytest.approx(np.sqrt(1 - 1 / 24), rel=1e-6)


def test_metrics_of_the_whole_set_equal_their_functions_on_all_tokens() -> None:
    trace = _planted()
    rows = _run(trace, planted_batch(PICTURES, GRID), set()).table()
    for layer in trace.raw:
        tokens = _float64(trace, layer, trace.backbone.norm)
        patches = tokens[:, 2:]
        every = patches.reshape(-1, WIDTH)
        parts = dse_paper(every, 0)
        expected = {
            "effective_rank": (np.exp(entropy(svdvals(every))), 240),
            "cka_cls_patchmean": (debiased_cka(tokens[:, 0], patches.mean(1)), PICTURES),
            "dse": (parts.inter - parts.intra + parts.dim, 240),
            "dse_inter": (parts.inter, 240),
            "dse_intra": (parts.intra, 240),
            "dse_dim": (parts.dim, 240),
        }
        for metric, (value, n) in expected.items():
            (row,) = [row for row in rows if (row.metric, row.layer) == (metric, layer)]
            assert row.value == pytest.approx(value, rel=1e-4), (metric, layer)
            assert (row.n, row.low, row.high) == (n, None, None)
        evenly = [place * PICTURES // 8 for place in range(8)]
        assert _values(rows, layer)["dse_code"] == pytest.approx(dse_code(patches[evenly], 0), rel=1e-4)


@pytest.mark.parametrize(("limit", "expected"), [(240, 240), (239, 230), (24, 20), (10, 10), (7, 7)])
def test_effective_rank_takes_at_most_the_tokens_asked_for(limit: int, expected: int) -> None:
    options = SimilarityOptions(rank_tokens=limit, dse_tokens=48)
    rows = _run(_planted(), planted_batch(PICTURES, GRID), set(), options=options).table()
    assert {row.n for row in rows if row.metric == "effective_rank"} == {expected}
    assert {row.n for row in rows if row.metric == "dse"} == {40}  # four of each picture


def test_dse_weight_is_the_weight_of_the_dimension() -> None:
    options = SimilarityOptions(dse_tokens=480, dse_weight=0.25)
    values = _values(_run(_planted(), planted_batch(PICTURES, GRID), set(), options=options).table(), 2)
    assert values["dse"] == pytest.approx(values["dse_inter"] - values["dse_intra"] + 0.25 * values["dse_dim"])


@pytest.mark.parametrize("size", [1, 5, PICTURES])
def test_batch_size_changes_nothing(size: int) -> None:
    trace, batch = _planted(), planted_batch(PICTURES, GRID, masks=_masks())
    options = SimilarityOptions(rank_tokens=50, dse_tokens=48)
    _assert_same(
        _run(trace, batch, {"masks"}, size, options).table(),
        _run(trace, batch, {"masks"}, 3, options).table(),
    )


@pytest.mark.parametrize("options", [SMALL, SimilarityOptions(rank_tokens=50, dse_tokens=48)])
def test_two_processes_give_the_table_of_one(options: SimilarityOptions) -> None:
    trace, batch = _planted(), planted_batch(PICTURES, GRID, masks=_masks())
    parts = []
    for rank in range(2):
        part = Similarity(planted_context(trace, PICTURES, {"masks"}), options)
        feed_planted(part, trace, batch, 3, range(rank, PICTURES, 2))
        part.finish()
        parts.append(part)
    _assert_same(joined(parts).table(), _run(trace, batch, {"masks"}, options=options).table())


def test_asking_twice_and_starting_again() -> None:
    trace, batch = _planted(), planted_batch(PICTURES, GRID)
    diagnostic = Similarity(planted_context(trace, PICTURES), SMALL)
    feed_planted(diagnostic, trace, batch, 4)
    first = diagnostic.table()  # without `finish`
    assert diagnostic.table() == first
    diagnostic.reset()
    feed_planted(diagnostic, trace, batch, 4)
    assert diagnostic.table() == first


def test_what_is_missing_is_named() -> None:
    raw = {layer: _tokens(layer, prefix=0) for layer in range(2)}
    diagnostic = _run(planted_trace(raw, GRID, has_cls=False), planted_batch(PICTURES, GRID), set())
    named = " ".join(left.what for left in diagnostic.left_out)
    for metric in ("cls_patch_cos", "cls_patch_cos_prenorm", "cls_patch_cos_postnorm", "cka_cls_patchmean", "srss"):
        assert metric in named.replace(",", " ").split()
        assert metric not in {row.metric for row in diagnostic.table()}
    blocks = _run(
        planted_trace({0: _tokens(0), 1: _tokens(1)}, GRID, registers=1), planted_batch(PICTURES, GRID), set()
    )
    assert "cls_patch_cos_prenorm" in " ".join(left.what for left in blocks.left_out)


def test_only_some_layers() -> None:
    trace = _planted()
    every = _run(trace, planted_batch(PICTURES, GRID), set()).table()
    last = _run(trace, planted_batch(PICTURES, GRID), set(), layers=[2]).table()
    _assert_same(last, [row for row in every if row.layer == 2])


@pytest.mark.parametrize("grid", [(37, 37), (1, 1), (1, 3)])
def test_large_and_tiny_grids(grid: tuple[int, int]) -> None:
    trace = planted_trace({0: _tokens(0, 4, prefix=1, grid=grid)}, grid)
    rows = _run(trace, planted_batch(4, grid), set()).table()
    assert rows
    assert all(np.isfinite(row.value) for row in rows)
    diagnostic = Similarity(planted_context(trace, 4), SMALL)
    left_out = {metric for left in diagnostic.left_out for metric in left.what.split(", ")}
    for metric in ("patch_patch_cos", "lds", "cds"):
        assert (metric in _values(rows, 0)) == (metric not in left_out), metric


def test_no_picture_gives_no_row() -> None:
    assert Similarity(planted_context(_planted(), 5), SMALL).table() == []


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="rank_token"):
        SimilarityOptions(rank_token=5)  # type: ignore[call-arg]
