"""Weights files damaged at random, of every family: refused in one line, or loaded with every single weight from the file.

The weights of a file are of the form k/4 + 1/16, and so is what a converter makes of them (a sum of two is k/4 + 2/16). What a
network starts from before loading is not: 0, 1, 1e-5, and random numbers.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from diffusionlens.models import Backbone
from tests.models.checkpoints.test_families import PLAIN, vit
from tests.models.files import State, tried

LAYOUTS = [name for name in PLAIN if "half" not in name]
QUICKLY = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,  # the same cases in every run of CI
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def planted(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-8, 8, parameter.shape, generator=generator) / 4 + 1 / 16)
    return model


def opened(path: Path) -> Backbone | None:
    """The network when the file is taken, with every weight from it; None when it is refused in one line."""
    backbone = tried(path)
    if isinstance(backbone, str):
        assert backbone
        assert backbone.isprintable()
        return None
    for key, value in backbone.model.state_dict().items():
        parts = torch.unique((value % 0.25) * 16)
        assert set(parts.tolist()) <= {1.0, 2.0}, f"{key} is not from the file"
    return backbone


def dictionary_of_weights(content: Any) -> State:
    """The innermost dictionary."""
    while not any(isinstance(value, torch.Tensor) for value in content.values()):
        content = next(value for value in content.values() if isinstance(value, dict))
    return content


def planted_content(layout: str) -> dict[Any, Any]:
    options, make, _ = PLAIN[layout]
    content = dict(make(planted(vit(**options))))
    state = dictionary_of_weights(content)
    if any(key.endswith("register_tokens") for key in state):  # the layout takes a random position of CLS off its token
        table = next(key for key in state if key.endswith(("pos_embed", "position_embeddings")))
        token = next(key for key in state if key.endswith("cls_token"))
        state[table] = state[table].clone().index_fill_(1, torch.tensor([0]), 1 / 16)
        state[token] = torch.full_like(state[token], 1 / 16)
    return content


def odd_tensors(shape: torch.Size, chosen: random.Random) -> Any:
    whole = torch.full(shape, 1 / 16)
    return chosen.choice(
        [
            whole.flatten(), whole[None], whole[:0], whole.to_sparse(), whole.long(), whole.to(torch.complex64), whole.to("meta"),
            torch.full((1,), 1 / 16).expand(shape), torch.full(shape, torch.nan), torch.full(shape, 1 / 16, dtype=torch.float64),
            whole.T if whole.dim() == 2 else whole.squeeze(), whole.bfloat16(), torch.tensor(1 / 16), None, 7, "text", [whole],
            {"weight": whole},
        ]
    )  # fmt: skip


def names(key: Any, state: State, chosen: random.Random) -> Any:
    key, other = str(key), chosen.choice(list(state))
    number = str(chosen.choice([0, 1, 2, 10**6, -1]))
    return chosen.choice(
        [
            other, f"module.{key}", f"teacher.{key}", f"student.backbone.{key}", key.replace("0", number), f"{key}.", f".{key}",
            key.upper(), key.replace(".", ".."), f"{key}\n\x1b[0m", key[: len(key) // 2], "", 5, f"head.{key}",
            key.replace("blocks.", "blocks.0."),
        ]
    )  # fmt: skip


def damaged(content: Any, chosen: random.Random) -> Any:
    """One to four changes: weights lost, renamed, of another shape or kind, and dictionaries around them."""
    state = dictionary_of_weights(content)
    for _ in range(chosen.randint(1, 4)):
        key = chosen.choice(list(state))
        value = state[key]
        match chosen.randrange(5):
            case 0:
                state.pop(key)
            case 1 if isinstance(value, torch.Tensor):
                state[key] = odd_tensors(value.shape, chosen)
            case 2:
                state[names(key, state, chosen)] = state.pop(key)
            case 3:
                state[names(key, state, chosen)] = value
            case _:
                other = chosen.choice(list(state))
                state[key], state[other] = state[other], state[key]
    for _ in range(chosen.randint(0, 2)):
        name = chosen.choice(["model", "teacher", "student", "x", "\x1b[2J", 3, None, "state_dict"])
        content = {
            name: content,
            chosen.choice(["epoch", "args", "teacher", "y"]): chosen.choice([1, None, "x", {}, state]),
        }
    return content


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, about the odd tensors made here
@QUICKLY
@given(layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32))
def test_damaged_dictionaries(layout: str, seed: int, tmp_path: Path) -> None:
    torch.save(damaged(planted_content(layout), random.Random(seed)), tmp_path / "w.pth")
    opened(tmp_path / "w.pth")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_planted_weights_are_told_from_those_of_a_new_network(layout: str, tmp_path: Path) -> None:
    """Of the test above: undamaged files are taken, and a network that is not from them is seen."""
    torch.save(planted_content(layout), tmp_path / "w.pth")
    assert opened(tmp_path / "w.pth") is not None
    torch.save(vit().state_dict(), tmp_path / "new.pth")
    with pytest.raises(AssertionError, match="is not from the file"):
        opened(tmp_path / "new.pth")


def flip(whole: bytes, places: list[int], chosen: random.Random) -> bytes:
    content = bytearray(whole)
    for place in places:
        content[place % len(content)] ^= 1 << chosen.randrange(8)
    return bytes(content)


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": lambda whole, chosen: flip(
        whole, [chosen.randrange(len(whole)) for _ in range(chosen.randint(1, 20))], chosen
    ),
    "flipped in front": lambda whole, chosen: flip(whole, [chosen.randrange(4000) for _ in range(3)], chosen),
    "flipped at the end": lambda whole, chosen: flip(
        whole, [len(whole) - 1 - chosen.randrange(3000) for _ in range(3)], chosen
    ),
    "cut": lambda whole, chosen: whole[: chosen.randrange(len(whole))],
    "a piece lost": lambda whole, chosen: (lambda at: whole[:at] + whole[at + chosen.randint(1, 999) :])(
        chosen.randrange(len(whole))
    ),
    "a piece twice": lambda whole, chosen: (lambda at: whole[:at] + whole[max(0, at - 99) :])(
        chosen.randrange(len(whole))
    ),
    "doubled": lambda whole, _: whole + whole,
    "blank": lambda whole, chosen: (lambda at: whole[:at] + bytes(len(whole) - at))(chosen.randrange(len(whole))),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@QUICKLY
@given(
    how=st.sampled_from(list(CHANGES)),
    seed=st.integers(0, 2**32),
    suffix=st.sampled_from([".pth", ".bin", ".safetensors"]),
)
def test_damaged_bytes(how: str, seed: int, suffix: str, tmp_path: Path) -> None:
    """torch looks at no checksum. What is taken has all weights that were saved; only formats without checksums (old pickles,
    safetensors) may have changed ones, and then those of the file, by another reader."""
    from safetensors.torch import load_file, save_file

    whole, path = tmp_path / f"whole{suffix}", tmp_path / f"w{suffix}"
    state = vit().state_dict()
    if not whole.exists():
        if suffix == ".safetensors":
            save_file(state, whole)
        else:
            torch.save(state, whole, _use_new_zipfile_serialization=suffix == ".pth")
    path.write_bytes(CHANGES[how](whole.read_bytes(), random.Random(seed)))
    backbone = tried(path)
    if isinstance(backbone, str):
        assert backbone.isprintable()
        return
    own = load_file(path) if suffix == ".safetensors" else torch.load(path, weights_only=True)
    for key, value in backbone.model.state_dict().items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, own[key])
        assert suffix != ".pth" or torch.equal(value, state[key])
