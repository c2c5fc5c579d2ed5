"""`norms` on planted tokens: what was planted is found, whatever the batches and processes."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diffusionlens.analysis.diagnostic import Diagnostic
from diffusionlens.analysis.norms.diagnostic import Norms, NormsOptions
from diffusionlens.capture import Trace
from diffusionlens.data.sample import Batch
from diffusionlens.results import Row
from tests.analysis.planted import feed_planted, joined, patch_mask, planted_batch, planted_context, planted_trace

GRID = (5, 7)
PICTURES = 40


def _tokens(
    pictures: int = PICTURES, prefix: int = 1, width: int = 16, seed: int = 0, grid: tuple[int, int] = GRID
) -> Tensor:
    """Tokens of norm 20 to 60."""
    generator = torch.Generator().manual_seed(seed)
    count = prefix + grid[0] * grid[1]
    tokens = nn.functional.normalize(torch.randn(pictures, count, width, generator=generator), dim=-1)
    return tokens * (40 + 5 * torch.randn(pictures, count, 1, generator=generator)).clamp(20, 60)


def _with_outliers(tokens: Tensor, prefix: int, boxes: list[Tensor]) -> tuple[Tensor, int, int]:
    """Scales one patch of each picture to norm 400, on the object in one picture of four; outliers, those in background."""
    tokens = tokens.clone()
    in_background = 0
    for place, box in enumerate(boxes):
        on_object = place % 4 == 0
        row, column = (int(box[0, 1]) // 4, int(box[0, 0]) // 4) if on_object else (0, 0)
        patch = prefix + row * GRID[1] + column
        tokens[place, patch] *= 400 / tokens[place, patch].norm()
        in_background += not on_object
    return tokens, len(boxes), in_background


def _boxes(pictures: int) -> list[Tensor]:
    # Two patches each, from patch (1,1) to (3,4); the patch (0,0) is never on an object.
    corners = [(4 * (1 + place % 4), 4 * (1 + place % 3)) for place in range(pictures)]
    return [torch.tensor([[x, y, x + 8, y + 4]]) for x, y in corners]


def _run(
    trace: Trace, batch: Batch, provides: set[str], size: int = 6, options: NormsOptions | None = None, seed: int = 0
) -> Norms:
    diagnostic = Norms(planted_context(trace, len(batch), provides, seed=seed), options or NormsOptions())
    feed_planted(diagnostic, trace, batch, size)
    diagnostic.finish()
    return diagnostic


def _find(rows: list[Row], metric: str, layer: int, token: str | None = None) -> Row:
    (row,) = [row for row in rows if (row.metric, row.layer, row.token) == (metric, layer, token)]
    return row


def _key(row: Row) -> tuple[object, ...]:
    return (row.metric, row.layer, row.head, row.token, row.n)


def _assert_same(rows: list[Row], others: list[Row]) -> None:
    assert [_key(row) for row in rows] == [_key(row) for row in others]
    for row, other in zip(rows, others, strict=True):
        assert row.value == pytest.approx(other.value, rel=1e-5, abs=1e-7), row
        if row.low is not None:
            assert (row.low, row.high) == pytest.approx((other.low, other.high), rel=1e-5, abs=1e-7), row


def test_statistics_equal_numpys_in_float64() -> None:
    norm = nn.LayerNorm(16)
    nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(3))
    raw = {0: _tokens(prefix=4), 1: 3 * _tokens(prefix=4, seed=1)}
    trace = planted_trace(raw, GRID, registers=3, norm=norm)
    rows = _run(trace, planted_batch(PICTURES, GRID), set()).table()
    for layer, tokens in raw.items():
        values = tokens.double()
        centred = values - values.mean(-1, keepdim=True)
        normed = (
            centred / (values.var(-1, correction=0, keepdim=True) + norm.eps).sqrt() * norm.weight.detach().double()
        )
        for token, stream in (("raw", values), ("normed", normed)):
            norms = np.linalg.norm(stream.numpy(), axis=-1)
            patches = norms[:, 4:]
            expected = {
                "norm_mean": (patches.mean(), PICTURES),
                "norm_median": (np.median(patches), patches.size),
                "norm_p99": (np.percentile(patches, 99), patches.size),
                "norm_max": (patches.max(), patches.size),
                "cls_norm": (norms[:, 0].mean(), PICTURES),
                "register_norm": (norms[:, 1:4].mean(), PICTURES),
            }
            for metric, (value, n) in expected.items():
                row = _find(rows, metric, layer, token)
                assert row.value == pytest.approx(value, rel=1e-5), (metric, layer, token)
                assert row.n == n
                pooled = metric in ("norm_median", "norm_p99", "norm_max")
                assert (row.low is None) == pooled
                assert pooled or row.low < row.value < row.high  # type: ignore[operator]


@pytest.mark.parametrize("provides", ["boxes", "masks"])
def test_planted_outliers_are_recovered_exactly(provides: str) -> None:
    boxes = _boxes(PICTURES)
    tokens, outliers, hidden = _with_outliers(_tokens(), 1, boxes)
    masks = []
    for box in boxes:
        labels = torch.zeros(GRID)
        row, column = int(box[0, 1]) // 4, int(box[0, 0]) // 4
        labels[row, column : column + 2] = 3
        masks.append(patch_mask(labels))
    given = {"boxes": boxes} if provides == "boxes" else {"masks": masks}
    trace = planted_trace({0: _tokens(), 1: tokens}, GRID)
    rows = _run(trace, planted_batch(PICTURES, GRID, **given), {provides}).table()  # type: ignore[arg-type]
    for rule in ("valley", "mad", "fixed=150"):
        share = _find(rows, "outlier_share", 1, rule)
        assert share.value == pytest.approx(outliers / (PICTURES * 35)), rule
        assert share.n == PICTURES
        background = _find(rows, "outlier_background_share", 1, rule)
        assert background.value == pytest.approx(hidden / outliers), rule
    assert _find(rows, "outlier_share", 0, "valley (unimodal)").value == 0
    assert not [
        row for row in rows if row.metric == "outlier_background_share" and row.layer == 0 and row.token == "valley"
    ]


def test_outliers_in_several_pictures_are_pooled_not_averaged() -> None:
    tokens = _tokens(4)
    for place, patches in enumerate([[0, 1, 2], [0], [], [34]]):  # patches 0..2 background, 34 on the object
        for patch in patches:
            tokens[place, 1 + patch] *= 400 / tokens[place, 1 + patch].norm()
    boxes = [torch.tensor([[24, 16, 28, 20]])] * 4
    rows = _run(planted_trace({0: tokens}, GRID), planted_batch(4, GRID, boxes=boxes), {"boxes"}).table()
    row = _find(rows, "outlier_background_share", 0, "fixed=150")
    assert row.value == pytest.approx(4 / 5)
    assert row.n == 3  # pictures with outliers


def test_a_mask_without_background_hides_nothing() -> None:
    """Where every pixel is of a class, label 0 is a wall or a person; only boxes can say what is background."""
    boxes = _boxes(PICTURES)
    tokens, outliers, hidden = _with_outliers(_tokens(), 1, boxes)
    trace = planted_trace({0: _tokens(), 1: tokens}, GRID)
    masks = [patch_mask(torch.zeros(GRID))] * PICTURES
    alone = _run(trace, planted_batch(PICTURES, GRID, masks=masks), {"masks", "parsing"})
    assert "outlier_background_share" in {left.what for left in alone.left_out}
    assert not [row for row in alone.table() if row.metric == "outlier_background_share"]
    batch = planted_batch(PICTURES, GRID, boxes=boxes, masks=masks)
    rows = _run(trace, batch, {"boxes", "masks", "parsing"}).table()
    assert _find(rows, "outlier_background_share", 1, "fixed=150").value == pytest.approx(hidden / outliers)
    # A picture without any object is background all over, whatever its mask says.
    batch = planted_batch(
        PICTURES, GRID, boxes=[torch.zeros(0, 4)] * PICTURES, masks=[patch_mask(torch.ones(GRID))] * PICTURES
    )
    rows = _run(trace, batch, {"boxes", "masks", "parsing"}).table()
    assert _find(rows, "outlier_background_share", 1, "fixed=150").value == 1


def test_neighbor_cosine_is_that_of_layer_zero() -> None:
    tokens, _, _ = _with_outliers(_tokens(), 1, _boxes(PICTURES))
    embedded = _tokens(seed=9) + 12
    rows = _run(planted_trace({0: embedded, 1: tokens}, GRID), planted_batch(PICTURES, GRID), set()).table()
    values = embedded[:, 1:].double().numpy().reshape(PICTURES, *GRID, -1)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    outlier = np.linalg.norm(tokens[:, 1:].double().numpy(), axis=-1).reshape(PICTURES, *GRID) > 200
    found: dict[bool, list[float]] = {True: [], False: []}
    for picture in range(PICTURES):
        for row in range(GRID[0]):
            for column in range(GRID[1]):
                near = [
                    values[picture, row, column] @ values[picture, row + dy, column + dx]
                    for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))
                    if 0 <= row + dy < GRID[0] and 0 <= column + dx < GRID[1]
                ]
                found[bool(outlier[picture, row, column])].append(float(np.mean(near)))
    for rule in ("valley", "mad"):
        assert _find(rows, "outlier_neighbor_cos", 1, f"outlier:{rule}").value == pytest.approx(
            np.mean(found[True]), abs=1e-6
        )
        assert _find(rows, "outlier_neighbor_cos", 1, f"normal:{rule}").value == pytest.approx(
            np.mean(found[False]), abs=1e-6
        )


@pytest.mark.parametrize("size", [1, 5, PICTURES])
def test_batch_size_changes_nothing(size: int) -> None:
    boxes = _boxes(PICTURES)
    tokens, _, _ = _with_outliers(_tokens(), 1, boxes)
    trace, batch = planted_trace({0: _tokens(), 1: tokens}, GRID), planted_batch(PICTURES, GRID, boxes=boxes)
    _assert_same(_run(trace, batch, {"boxes"}, size).table(), _run(trace, batch, {"boxes"}, 7).table())


def test_two_processes_give_the_table_of_one() -> None:
    boxes = _boxes(PICTURES)
    tokens, _, _ = _with_outliers(_tokens(), 1, boxes)
    trace, batch = planted_trace({0: _tokens(), 1: tokens}, GRID), planted_batch(PICTURES, GRID, boxes=boxes)
    parts: list[Diagnostic] = []
    for rank in range(2):
        part = Norms(planted_context(trace, PICTURES, {"boxes"}), NormsOptions())
        feed_planted(part, trace, batch, 6, range(rank, PICTURES, 2))
        part.finish()
        parts.append(part)
    _assert_same(joined(parts).table(), _run(trace, batch, {"boxes"}).table())
    assert parts[0].order == list(range(PICTURES))


def test_options_choose_the_stream_and_the_cut_off() -> None:
    trace = planted_trace({0: _tokens()}, GRID, norm=nn.LayerNorm(16))
    options = NormsOptions(tokens="normed", fixed=3.9)
    rows = _run(trace, planted_batch(PICTURES, GRID), set(), options=options).table()
    # A layer norm without weights gives every token the norm sqrt(16) = 4, up to its epsilon.
    assert _find(rows, "outlier_share", 0, "fixed=3.9").value == 1
    assert _find(rows, "outlier_share", 0, "mad").value < 0.2


def test_what_is_missing_is_named() -> None:
    trace = planted_trace({0: _tokens(4, prefix=0)}, GRID, has_cls=False)
    diagnostic = _run(trace, planted_batch(4, GRID), set())
    assert {left.what for left in diagnostic.left_out} == {"cls_norm", "register_norm", "outlier_background_share"}
    metrics = {row.metric for row in diagnostic.table()}
    assert not metrics & {"cls_norm", "register_norm", "outlier_background_share"}
    assert {"norm_mean", "outlier_share", "outlier_neighbor_cos"} <= metrics


def test_a_single_patch_has_no_neighbors() -> None:
    trace = planted_trace({0: _tokens(4, grid=(1, 1))}, (1, 1))
    diagnostic = _run(trace, planted_batch(4, (1, 1)), set())
    assert "outlier_neighbor_cos" in {left.what for left in diagnostic.left_out}
    rows = diagnostic.table()
    assert not [row for row in rows if row.metric == "outlier_neighbor_cos"]
    assert all(np.isfinite(row.value) for row in rows)


def test_no_picture_gives_no_row() -> None:
    trace = planted_trace({0: _tokens(1)}, GRID)
    assert Norms(planted_context(trace, 5), NormsOptions()).table() == []


def test_histograms_hold_every_patch_and_the_thresholds() -> None:
    tokens, _, _ = _with_outliers(_tokens(), 1, _boxes(PICTURES))
    diagnostic = _run(planted_trace({0: _tokens(), 1: tokens}, GRID), planted_batch(PICTURES, GRID), set())
    histograms = diagnostic.histograms()
    assert set(histograms) == {0, 1}
    for histogram in histograms.values():
        assert histogram.counts.sum() == PICTURES * 35
        np.testing.assert_allclose(np.diff(np.log(histogram.edges)), np.log(histogram.edges[1] / histogram.edges[0]))
    assert histograms[0].thresholds["valley"] == np.inf
    assert 60 < histograms[1].thresholds["valley"] < 400
    assert histograms[1].thresholds["fixed=150"] == 150
