"""Well-formed files whose weights are of no network: wrong ranks, gaps, doubles, missing parts, names that steer a terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusionlens.models import load_model
from tests.models.checkpoints.test_families import PLAIN, hf_dinov2, hf_vit, vit
from tests.models.files import WIDTH, State, plain_vit, refused, written

Change = Callable[[State], Any]
CASES: dict[str, tuple[Change, str]] = {}

PROJ, FC1, FC2 = "patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"


def put(**changed: Any) -> Change:
    """Weights under these names; `__` stands for a dot, None takes away."""

    def change(state: State) -> State:
        for name, value in changed.items():
            key = name.replace("__", ".")
            if value is None:
                del state[key]
            else:
                state[key] = value
        return state

    return change


def claimed(*shape: int) -> torch.Tensor:
    """A tensor that claims much and holds one number."""
    return torch.full((1,), 0.3).expand(*shape)


def renamed(old: str, new: str) -> Change:
    return lambda state: {key.replace(old, new): value for key, value in state.items()}


def with_names(prefix: str) -> Change:
    return lambda state: {**state, **{prefix + key: value for key, value in state.items()}}


ranks = {
    "patch_embed__proj__weight": [(64,), (64, 192), (64, 3, 8), (64, 3, 8, 8, 1)],
    "cls_token": [(), (64,), (1, 64)],
    "pos_embed": [(), (64,), (17, 64), (1, 4, 4, 64)],
    "blocks__0__mlp__fc1__weight": [(), (256,), (256, 64, 1, 1)],
    "blocks__0__mlp__fc2__weight": [(64,), (64, 256, 1)],
    "reg_token": [(64,), (4, 64)],
}
for name, shapes in ranks.items():
    for shape in shapes:
        CASES[f"{name} of shape {shape}"] = put(**{name: torch.full(shape, 0.3)}), name.replace("__", ".")

CASES |= {
    "a gap in the blocks": (renamed("blocks.1.", "blocks.7."), "no block 1"),
    "no first block": (renamed("blocks.0.", "blocks.1."), "lacks the weight 'blocks.0|no block 0"),
    "a block of number 999999999": (put(blocks__999999999__norm1__weight=torch.ones(WIDTH)), "no block 2"),
    "a block of a number beyond all": (put(**{f"blocks__{'9' * 4000}__norm1__weight": torch.ones(WIDTH)}), "numbered"),
    "one block more, by one weight": (put(blocks__2__norm1__weight=torch.ones(WIDTH)), "lacks 11 weights"),
    "no blocks": (
        lambda s: {key: value for key, value in s.items() if not key.startswith("blocks.")},
        "lacks the weight",
    ),
    "the patch embedding alone": (lambda s: {PROJ: s[PROJ]}, "lacks the weight|no known family"),
    "no position table": (put(pos_embed=None), "pos_embed"),
    "no final norm's bias": (put(norm__bias=None), "norm.bias"),
    "a bias without its weight": (put(norm__weight=None), "norm.bias"),
    "twice, wrapped and not": (with_names("module."), "twice"),
    "twice, compiled and not": (with_names("_orig_mod."), "twice"),
    "twice, in two chunks": (
        lambda s: {**renamed("blocks.", "blocks.0.")(s), **renamed("blocks.", "blocks.1.")(s)},
        "twice, under names of two trainings",
    ),
    "two networks side by side": (
        lambda s: {f"{name}.{key}": value for name in ("a", "b") for key, value in s.items()},
        "several networks",
    ),
    "two networks in two dictionaries": (lambda s: {"online": s, "target": s}, "several networks"),
    "two teachers": (
        lambda s: {f"teacher.{name}.{key}": value for name in "ab" for key, value in s.items()},
        "several",
    ),
    "a student of nothing": (lambda s: {"student": {}, "teacher": []}, "no ViT backbone"),
    "four channels": (put(patch_embed__proj__weight=torch.ones(64, 4, 8, 8)), "4 channels"),
    "no channels": (put(patch_embed__proj__weight=torch.ones(64, 0, 8, 8)), "empty"),
    "patches of no size": (put(patch_embed__proj__weight=torch.ones(64, 3, 0, 8)), "empty"),
    "an empty table": (put(pos_embed=torch.ones(1, 0, 64)), "empty"),
    "a table that is no square": (put(pos_embed=torch.ones(1, 19, 64)), "no square grid"),
    "two tables": (put(pos_embed=torch.ones(2, 17, 64)), "pos_embed has the shape"),
    "a table of another width": (put(pos_embed=torch.ones(1, 17, 65)), "pos_embed has the shape"),
    "a first layer of another width": (put(blocks__0__mlp__fc1__weight=torch.ones(256, 63)), "shape"),
    "an MLP that is no rectangle": (
        put(blocks__0__mlp__fc2__weight=torch.ones(64, 100)),
        "shape|lacks|has \\d+ weights",
    ),
    "NaN": (put(norm__weight=torch.full((WIDTH,), torch.nan)), "NaN"),
    "infinity in float32 only": (
        put(norm__weight=torch.full((WIDTH,), 1e300, dtype=torch.float64)),
        "infinite in float32",
    ),
    "one infinity": (put(norm__bias=torch.tensor([-torch.inf] + [0.0] * 63)), "infinite"),
    "a width of a billion": (put(patch_embed__proj__weight=claimed(10**9, 3, 16, 16)), "repeated|lacks|head"),
    "an MLP of a billion": (put(blocks__0__mlp__fc1__weight=claimed(10**9, 64)), "repeated"),
    "a billion registers": (put(reg_token=claimed(1, 10**9, 64)), "repeated"),
    "a billion places": (put(pos_embed=claimed(1, 10**9, 64)), "repeated"),
    "a patch of a billion pixels": (put(patch_embed__proj__weight=claimed(64, 3, 10**6, 10**6)), "repeated"),
    "repeated, and small": (put(norm__weight=claimed(WIDTH)), "repeated"),
    "an unknown weight": (put(blocks__0__gate__weight=torch.ones(2)), "blocks.0.gate.weight"),
    "a swin": (put(layers__0__blocks__0__attn__qkv__weight=torch.ones(2)), "layers.0"),
    "an empty name": (put(**{"": torch.ones(2)}), "has 1 weights|''"),
    "a name of dots": (put(**{"......": torch.ones(2)}), r"\.\."),
    "a name of two lines": (put(**{"two\nlines": torch.ones(2)}), r"two\\nlines"),
    "a name that clears the screen": (put(**{"\x1b[2J\x1b]0;owned\x07": torch.ones(2)}), r"\\x1b\[2J"),
    "a name from right to left": (put(**{"\u202ehtap\u2066": torch.ones(2)}), r"\\u202e"),
    "half a letter": (put(**{"x\ud800": torch.ones(2)}), r"\\ud800"),
    "a NUL": (put(**{"x\0y": torch.ones(2)}), r"\\x00"),
    "a name of a million letters": (put(**{"blocks.0." + "x" * 10**6: torch.ones(2)}), "has 1 weights"),
    "names that are markup": (put(**{"[bold]<script>alert(1)</script>": torch.ones(2)}), "script"),
    "a name of two lines for a block": (put(**{"blocks.\n1.x": torch.ones(2)}), "numbered blocks"),
    "nothing but a name": (lambda _: {"\x1b[31m": 1}, "holds no ViT backbone"),
    "an anchor that is no tensor": (put(patch_embed__proj__weight=[1, 2]), "holds no ViT backbone"),
    "weights under numbers": (lambda s: {**s, 3: torch.ones(2)}, "under the key 3"),
    "weights under a pair": (lambda s: {**s, ("a", "b\n"): torch.ones(2)}, r"under the key \('a', 'b"),
    "only other networks": (
        lambda _: {"conv1.weight": torch.ones(4, 3, 7, 7), "fc.weight": torch.ones(4, 4)},
        "no ViT",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_refused_in_one_line(name: str, tmp_path: Path) -> None:
    change, message = CASES[name]
    line = refused(written(change(dict(plain_vit().state_dict())), tmp_path / "w.pth"), message)
    assert len(line) < 2_100


def test_what_may_be_odd_and_is_still_whole(tmp_path: Path) -> None:
    """Values beside the weights are nobody's business, whatever they are; only the epoch is read, where it is one."""
    state = dict(plain_vit().state_dict())
    for place, odd in enumerate(
        ({"epoch": "ten"}, {"epoch": True}, {"epoch": torch.ones(2)}, {None: 1, "\x1b": [], 1.5: {}})
    ):
        backbone = load_model(str(written({"model": state, **odd}, tmp_path / f"{place}.pth")))
        assert backbone.origin.epoch is None
        assert torch.equal(backbone.model.norm.weight, state["norm.weight"])
    assert load_model(str(written({"model": state, "epoch": -3}, tmp_path / "w.pth"))).origin.epoch == -3
    storing = {key: value.half().to(torch.float64) for key, value in state.items()}  # other types of floating point
    assert load_model(str(written(storing, tmp_path / "w.pth"))).model.norm.weight.dtype == torch.float32


# --- families whose weights are joined or split ---------------------------------------------------------------------


def hugging_face(name: str) -> State:
    return hf_vit(vit()) if name == "ViT" else hf_dinov2(vit(init_values=1e-5))


def key_of(state: State, end: str) -> str:
    return next(key for key in state if key.endswith(end))


SPLIT: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor | None], str]] = {
    "no key weights": ("layer.0.attention.attention.key.weight", lambda _: None, "lacks the weight"),
    "no query weights": ("layer.0.attention.attention.query.weight", lambda _: None, "lacks|has \\d+ weights"),
    "no value biases": ("layer.1.attention.attention.value.bias", lambda _: None, "lacks the weight"),
    "narrow keys": ("layer.0.attention.attention.key.weight", lambda value: value[:, :32], "other shapes|shape"),
    "short keys": ("layer.0.attention.attention.key.weight", lambda value: value[:32], "shape"),
    "flat keys": ("layer.0.attention.attention.key.weight", lambda value: value.flatten(), "other shapes|shape"),
    "a number for keys": ("layer.0.attention.attention.key.bias", lambda _: torch.tensor(1.0), "other shapes|shape"),
    "whole numbers for keys": ("layer.0.attention.attention.key.bias", lambda value: value.long(), "int64"),
    "no CLS token": ("cls_token", lambda _: None, "no known family|shape|lacks|grid"),
    "a flat position table": ("position_embeddings", lambda value: value.flatten(), "pos_embed"),
}


@pytest.mark.parametrize("family", ["ViT", "DINOv2"])
@pytest.mark.parametrize("name", list(SPLIT))
def test_parts_of_hugging_face(name: str, family: str, tmp_path: Path) -> None:
    end, change, message = SPLIT[name]
    state = hugging_face(family)
    key = key_of(state, end)
    changed = change(state.pop(key))
    if changed is not None:
        state[key] = changed
    refused(written(state, tmp_path / "w.pth"), message)


def test_parts_of_unequal_length_and_the_right_sum(tmp_path: Path) -> None:
    state = hugging_face("ViT")
    for name, rows in (("query", 96), ("key", 32)):
        for end, shape in (("weight", (rows, 64)), ("bias", (rows,))):
            state[key_of(state, f"layer.0.attention.attention.{name}.{end}")] = torch.ones(shape)
    refused(written(state, tmp_path / "w.pth"), "other shapes")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("register_tokens", torch.ones(64)),
        ("pos_embed", torch.ones(64)),
        ("pos_embed", torch.ones(1, 17, 3)),
        ("cls_token", torch.ones(1)),
        ("blocks.0.ls1.gamma", torch.ones(1, 1)),
    ],
)
def test_parts_of_dinov2_with_registers(key: str, value: torch.Tensor, tmp_path: Path) -> None:
    options, layout, _ = PLAIN["DINOv2 hub with registers"]
    refused(written({**layout(vit(**options)), key: value}, tmp_path / "w.pth"), "shape|dimensions|grid")


@pytest.mark.parametrize("value", [torch.ones(64), torch.ones(2, 96), torch.tensor(1.0), torch.ones(191)])
def test_parts_of_dinov3(value: torch.Tensor, tmp_path: Path) -> None:
    """Its biases of queries, keys and values lie in one vector, which is split."""
    state = dict(plain_vit(init_values=1e-5).state_dict()) | {"storage_tokens": torch.ones(1, 4, 64)}
    del state["pos_embed"]
    refused(written({**state, "blocks.0.attn.qkv.bias": value}, tmp_path / "w.pth"), "shape|dimensions")
