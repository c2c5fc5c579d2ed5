"""The benchmarks measure what they say: counts, ratios and memory, on the smallest input."""

import json
import sys

import pytest
import torch

from diffusionlens.bench.attention import bench_attention, parse_clock, parse_numbers, parse_shapes
from diffusionlens.bench.machine import machine, peak_allocation
from diffusionlens.bench.train import TrainRow, _row, bench_train
from diffusionlens.cli import main
from diffusionlens.errors import InputError
from tests.training.tiny import DATA, TINY


def test_peak_allocation_is_what_is_held_at_once() -> None:
    mib = 2**20

    def run() -> None:
        first = torch.ones(mib, dtype=torch.uint8)
        second = torch.ones(2 * mib, dtype=torch.uint8)
        del first, second
        torch.ones(mib, dtype=torch.uint8)

    assert peak_allocation(run) == 3 * mib


def test_attention() -> None:
    found = bench_attention("cpu", [(1, 2, 9)], stds=[1.0], rounds=3, steps=())
    names = ["softmax (torch SDPA)", "entmax package", "entmax15 chunked", "entmax15 (auto)"]
    assert [(row.direction, row.implementation) for row in found.rows] == [
        (direction, name) for direction in ("forward", "forward+backward") for name in names
    ]
    assert all(row.milliseconds > 0 for row in found.rows)
    assert [row.ratio for row in found.rows if row.implementation == names[0]] == [1, 1]
    text = found.as_text()
    assert machine() in text
    assert all(name in text for name in names)
    assert json.loads(json.dumps(found.as_dict()))["rounds"] == 3


@pytest.mark.parametrize("text", ["3x4", "0x1x2", "axbxc", "1x2x3,", "", "²x1x1"])
def test_shapes_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not BxHxN"):
        parse_shapes(text)


def test_options() -> None:
    assert parse_shapes("32x6x197,1x2x3") == [(32, 6, 197), (1, 2, 3)]
    assert parse_shapes("none") == []
    assert parse_numbers("0.15,3", "--stds") == [0.15, 3]
    for text in ("x", "0", "-1", "nan", "1e9", ""):
        with pytest.raises(InputError, match="--stds"):
            parse_numbers(text, "--stds")
    with pytest.raises(InputError, match="wall or cpu"):
        parse_clock("sundial")
    for wrong in ({"dtypes": ["int8"]}, {"rounds": 0}):
        with pytest.raises(InputError):
            bench_attention("cpu", [], steps=(), **wrong)  # type: ignore[arg-type]


def test_train() -> None:
    found = bench_train("tiny_scenes_softmax", DATA, TINY, rounds=2, steps=1)
    softmax, entmax = found.rows
    assert (softmax.attention, entmax.attention) == ("softmax", "entmax15")
    assert softmax.ratio == 1
    assert entmax.ratio > 0
    for row in found.rows:
        assert 0 <= row.data_wait < 1
        assert min(row.images_per_second, row.step_ms) > 0
    assert "waiting for data" in found.as_text()


def test_a_row_is_made_of_its_rounds() -> None:
    """Seconds of (waiting, work) in three rounds of 2 steps of 10 pictures; ratios are taken inside the rounds."""
    spent = {"softmax": [(0.0, 1.0), (1.0, 3.0), (0.0, 2.0)], "entmax15": [(1.0, 2.0), (1.0, 3.0), (1.0, 8.0)]}
    row = _row("entmax15", spent, steps=2, batch_size=10)
    assert row == TrainRow("entmax15", images_per_second=5, step_ms=1500, ratio=2, data_wait=0.25)


def test_wrong_requests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["train", "--rounds", "0"], "--rounds 0"),
        (["train", "--recipe", "tiny_scenes_sofmax"], "did you mean"),
        (["attention", "--shapes", "3x4"], "is not BxHxN"),
        (["attention", "--device", "cuda:9", "--shapes", "none", "--no-steps"], "cuda:9"),
    ):
        monkeypatch.setattr(sys, "argv", ["diffusionlens", "bench", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert message in capsys.readouterr().err
