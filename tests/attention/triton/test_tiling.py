"""Tiles cover the keys, are what a tensor core takes, and waste little; the package says so where Triton is missing."""

import importlib
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.parametrize("widest", [64, 256])
def test_key_tiles_cover_every_count(widest: int) -> None:
    from diffusionlens.attention.triton.tiling import key_tiles

    for count in range(1, 257):
        tiles = key_tiles(count, widest)
        assert [first for first, _ in tiles] == [sum(width for _, width in tiles[:i]) for i in range(len(tiles))]
        assert all(width & (width - 1) == 0 and 16 <= width <= widest for _, width in tiles)
        covered = sum(width for _, width in tiles)
        assert tiles[-1][0] < count <= covered  # only the last tile reaches behind the last key
        assert covered <= max(16, 2 ** (count - 1).bit_length())
        assert sum(width < widest for _, width in tiles) <= 3
    assert [width for _, width in key_tiles(197, 256)] == [128, 64, 16]
    assert [width for _, width in key_tiles(37, 256)] == [32, 16]


def test_tail_width() -> None:
    from diffusionlens.attention.triton.tiling import tail_width

    assert [tail_width(count, 64) for count in (64, 197, 785, 1025, 300, 63)] == [0, 16, 32, 16, 64, 64]


def test_padded_width() -> None:
    from diffusionlens.attention.triton.tiling import padded_width, tilings

    assert [padded_width(width) for width in (1, 16, 17, 48, 64, 80, 256)] == [16, 16, 32, 64, 64, 128, 256]
    for width in (16, 32, 64, 128, 256):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for masked in (False, True):
                table = tilings(width, dtype, masked=masked)
                launches = [launch for _, launch in table.rows] + [
                    table.stream,
                    table.backward_queries,
                    table.backward_keys,
                ]
                assert min(launch.rows for launch in launches) >= 16  # what a tensor core takes
                assert table.whole_rows(257) is None
    few, many = (tilings(64, torch.bfloat16, masked=False).whole_rows(keys) for keys in (197, 256))
    assert few is not None
    assert many is not None
    assert few.rows > many.rows  # more keys leave registers for fewer rows


def test_without_triton_the_import_fails_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("diffusionlens.attention.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="triton"):
        importlib.import_module("diffusionlens.attention.triton")
