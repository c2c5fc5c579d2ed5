"""Tokens on the disk: found again when they are whole, filled anew when they are not, and never mixed up between runs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionlens.analysis.probes.cached import store as module
from diffusionlens.analysis.probes.cached.store import StoreRequest, TokenStore, open_store
from diffusionlens.analysis.processes import Processes
from diffusionlens.data import open_data
from diffusionlens.errors import InputError
from diffusionlens.models import load_model


def filled(cache: Path, layers: tuple[int, ...] = (0, 6), count: int = 4) -> TokenStore:
    backbone = load_model("shipped:mini_untrained_seed0")
    request = StoreRequest(
        open_data(f"scenes:?n={count}&size=64"),
        range(count),
        layers,
        "squash",
        False,
        "mask",
        2,
        0,
        torch.device("cpu"),
    )
    return open_store(backbone, request, cache, lambda *_: None, Processes())


def values(store: TokenStore, layer: int = 6) -> torch.Tensor:
    return torch.cat([store.tokens(layer, [place])[1] for place in range(len(store))])


def test_a_store_of_more_layers_serves_and_none_is_thrown_away(tmp_path: Path) -> None:
    assert filled(tmp_path, (0, 6)).forwards == 4
    assert filled(tmp_path, (6,)).forwards == 0
    assert filled(tmp_path, (3,)).forwards == 4
    assert filled(tmp_path, (0, 6)).forwards == filled(tmp_path, (3,)).forwards == 0
    assert filled(tmp_path, (3,), count=3).forwards == 3  # other pictures


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _edit(path: Path) -> None:
    written = json.loads(path.read_text())
    written["meta"]["rows"] = [99, 0, 1, 2]
    path.write_text(json.dumps(written))


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    *(("layer-06.npy", harm) for harm in (_cut, _flip, Path.unlink, lambda path: path.write_bytes(b""))),
    *(("targets-0.bin", harm) for harm in (_cut, _flip, Path.unlink)),
    *(
        ("meta.json", harm)
        for harm in (
            _cut,
            _edit,
            Path.unlink,
            *(
                lambda path, text=text: path.write_text(text)
                for text in ("[]", "null", "{}", '{"format": 2, "meta": {}, "checksum": 0}', "[" * 100000)
            ),
        )
    ),
]


@pytest.mark.parametrize(("name", "harm"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_store_is_filled_anew(name: str, harm: Callable[[Path], object], tmp_path: Path) -> None:
    first = filled(tmp_path)
    wanted, mask = values(first), first.target(3)
    first.close()
    harm(first.folder / name)
    again = filled(tmp_path)
    assert again.forwards == 4
    torch.testing.assert_close(values(again), wanted, rtol=0, atol=0)
    torch.testing.assert_close(again.target(3), mask, rtol=0, atol=0)
    assert filled(tmp_path).forwards == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_in_its_place_makes_way(tmp_path: Path) -> None:
    first = filled(tmp_path)
    first.close()
    first.folder.rename(tmp_path / "away")
    first.folder.write_text("x")
    assert filled(tmp_path).forwards == 4


def test_two_runs_that_want_the_same_tokens_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins and ends while the first is in the middle of its forward pass."""
    forward, second = module._forward_all, []

    def forward_and_more(backbone, request, work, progress, processes):  # type: ignore[no-untyped-def]
        found = forward(backbone, request, work, progress, processes)
        if not second:
            second.append(None)
            second[0] = filled(tmp_path)
        return found

    monkeypatch.setattr(module, "_forward_all", forward_and_more)
    first = filled(tmp_path)
    alone = filled(tmp_path / "alone")
    for own in (first, second[0]):
        assert own is not None
        torch.testing.assert_close(values(own), values(alone), rtol=0, atol=0)
        assert not np.array_equal(values(own)[0].numpy(), values(own)[1].numpy())


def test_an_open_store_survives_another_runs_hand(tmp_path: Path) -> None:
    first = filled(tmp_path)
    wanted = values(first).clone()
    for path in first.folder.iterdir():
        path.unlink()
    torch.testing.assert_close(values(first), wanted, rtol=0, atol=0)
    assert first.target(0).numel() == 64 * 64


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(InputError, match=r"has no room for .* GB of tokens \(No space left on device\)"):
        filled(tmp_path)
    assert list(tmp_path.iterdir()) == []
