"""Tensors that are no dense floating-point weights, and names that are none: one line, before anything is built."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.models.files import State, plain_vit, refused, written

FC1 = "blocks.0.mlp.fc1.weight"


def quantised(value: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)


ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda value: value.to_sparse(),
    "compressed": lambda value: value.to_sparse_csr(),
    "meta": lambda value: value.to("meta"),
    "quantised": quantised,
    "complex": lambda value: value.to(torch.complex64),
    "integer": lambda value: (value * 100).to(torch.int8),
    "boolean": lambda value: value > 0,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("kind", list(ODD))
@pytest.mark.parametrize("key", [FC1, "norm.weight"])
def test_odd_tensors(kind: str, key: str, tmp_path: Path) -> None:
    state = dict(plain_vit().state_dict())
    if kind == "compressed" and state[key].dim() != 2:
        pytest.skip("only matrices have this layout")
    state[key] = ODD[kind](state[key])
    assert key in refused(written(state, tmp_path / "w.pth"), "dense|kind|whole weights file")


def without(*keys: str) -> Callable[[State], object]:
    return lambda state: {key: value for key, value in state.items() if key not in keys}


NAMES: dict[str, tuple[Callable[[State], object], str]] = {
    "a number as a name": (lambda state: {**state, 5: torch.ones(2)}, "under the key 5"),
    "bytes as a name": (lambda state: {**state, b"x": torch.ones(2)}, "under the key b'x'"),
    "a position table of one dimension": (lambda state: {**state, "pos_embed": torch.ones(17)}, "pos_embed"),
    "blocks without a number": (
        lambda state: {**state, "blocks.x.norm1.weight": torch.ones(2)},
        "blocks.x.norm1.weight",
    ),
    "blocks alone": (lambda state: {**state, "blocks.": torch.ones(2)}, "'blocks.'"),
    "a superscript for a number": (lambda state: {**state, "blocks.².norm1.weight": torch.ones(2)}, "blocks.²"),
    "no first MLP": (without(FC1), FC1),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_names(name: str, tmp_path: Path) -> None:
    change, message = NAMES[name]
    refused(written(change(dict(plain_vit().state_dict())), tmp_path / "w.pth"), message)
