"""Files that say they are ours, with descriptions that lie: they build nothing, read nothing, and are one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from diffusionlens.errors import InputError
from diffusionlens.models import build, load_model
from diffusionlens.models.checkpoints.loading import outline
from diffusionlens.models.checkpoints.own_format import Description, describe
from diffusionlens.models.variant import Variant
from tests.models.files import refused

SMALL: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": 32}
ARCHITECTURE: dict[str, Any] = {
    "grid": [4, 4], "patch_size": [8, 8], "width": 48, "depth": 2, "heads": 3, "hidden": 192
}  # fmt: skip

CASES: dict[str, Any] = {
    "no JSON": "{nonsense",
    "JSON of another kind": [1],
    "a number": 7,
    "nothing": {},
    "two bases": {"timm": "vit_small_patch16_224", "architecture": ARCHITECTURE},
    "an unknown key": {"timm": "vit_small_patch16_224", "run": "rm"},
    "the future": {"timm": "vit_small_patch16_224", "format": 2},
    "an attention of its own": {"timm": "vit_small_patch16_224", "attention": "__import__('os')"},
    "mean of two": {"timm": "vit_small_patch16_224", "mean": [0.5, 0.5]},
    "mean of NaN": {"timm": "vit_small_patch16_224", "options": SMALL, "mean": [0.5, 0.5, float("nan")]},
    "std of nought": {"timm": "vit_small_patch16_224", "options": SMALL, "std": [0.5, 0.5, 0.0]},
    "an interpolation of its own": {"timm": "vit_small_patch16_224", "options": SMALL, "interpolation": "\x1b[31m"},
    "an unknown model": {"timm": "vit_smal_patch16_224"},
    "a model with an escape": {"timm": "\x1b[31m\nvit"},
    "a model of a hub": {"timm": "hf-hub:somebody/something"},
    "a model of a folder": {"timm": "local-dir:/tmp"},
    "another kind of model": {"timm": "resnet18"},
    "a model without one grid": {"timm": "swin_tiny_patch4_window7_224"},
    "an unknown option": {"timm": "vit_small_patch16_224", "options": {"wings": 2}},
    "an option twice": {"timm": "vit_small_patch16_224", "options": {"pretrained": True}},
    "options of another type": {"timm": "vit_small_patch16_224", "options": {"depth": "x", "img_size": {}}},
    "a billion blocks": {"timm": "vit_small_patch16_224", "options": {"depth": 10**9}},
    "a width of a billion": {"timm": "vit_small_patch16_224", "options": {"embed_dim": 6 * 10**8}},
    "a picture of a million pixels": {"timm": "vit_small_patch16_224", "options": {**SMALL, "img_size": 10**6}},
    "biases of a million pixels": {"timm": "beit_base_patch16_224", "options": {**SMALL, "img_size": 10**6}},
    "no heads": {"timm": "vit_small_patch16_224", "options": {**SMALL, "num_heads": 0}},
    "negative": {"timm": "vit_small_patch16_224", "options": {**SMALL, "depth": -2}},
    "blocks of its own": {"timm": "vit_small_patch16_224", "options": {**SMALL, "block_fn": "os.system"}},
} | {
    f"architecture with {key} {value}": {"architecture": {**ARCHITECTURE, key: value}}
    for key, value in (
        ("depth", 10**9), ("depth", 0), ("depth", -1), ("width", 10**12), ("width", 0), ("heads", 0), ("heads", 7), ("heads", -3),
        ("hidden", 10**12), ("hidden", 0), ("registers", -5), ("registers", 10**12), ("patch_size", [0, 0]), ("patch_size", [8]),
        ("patch_size", [10**6, 10**6]), ("grid", [0, 0]), ("grid", [10**6, 10**6]), ("grid", [-4, -4]), ("epsilon", -1.0),
        ("rotary", True), ("swiglu", True), ("qk_norm", True), ("wings", 2),
    )
}  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    model = build("vit_small_patch16_224", **SMALL)
    return {key: value.detach().contiguous() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("name", list(CASES))
def test_refused_in_one_line(name: str, tmp_path: Path) -> None:
    said = CASES[name]
    text = said if isinstance(said, str) else json.dumps(said)
    save_file(tensors(), tmp_path / "w.safetensors", metadata={"diffusionlens": text})
    assert len(refused(tmp_path / "w.safetensors")) < 2_100


@pytest.mark.parametrize(
    "option",
    [
        {"checkpoint_path": "other.pth"},
        {"pretrained_cfg": {"file": "other.pth"}},
        {"pretrained_cfg_overlay": {"url": "https://example.org/other.pth"}},
        {"cache_dir": "elsewhere"},
        {"scriptable": True},
    ],
)
def test_a_file_makes_nothing_read_another_file(
    option: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm.create_model has options that load weights from elsewhere; they are no part of an architecture."""
    opened: list[object] = []
    load: Callable[..., Any] = torch.load
    monkeypatch.setattr(torch, "load", lambda *given, **more: opened.append(given) or load(*given, **more))
    description = {"timm": "vit_small_patch16_224", "options": {**SMALL, **option}}
    save_file(tensors(), tmp_path / "w.safetensors", metadata={"diffusionlens": json.dumps(description)})
    refused(tmp_path / "w.safetensors", next(iter(option)))
    with pytest.raises(InputError, match=next(iter(option))):
        build("vit_small_patch16_224", **SMALL, **option)
    assert opened == []


def test_tables_that_are_computed_have_a_limit(tmp_path: Path) -> None:
    """BEiT's index of relative positions grows with the fourth power of the picture's side, its weights with the second."""
    path = tmp_path / "w.safetensors"
    for size, line in ((64, None), (2048, r"tables of \d+ GB")):
        variant = Variant(
            timm="beit_base_patch16_224", options={"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": size}
        )
        state = {key: torch.full(value.shape, 0.3) for key, value in outline(variant).state_dict().items()}
        save_file(state, path, metadata={"diffusionlens": Description(**variant.model_dump()).model_dump_json()})
        if line is None:
            assert load_model(str(path)).native_size == (size, size)
        else:
            refused(path, line)


def test_a_true_description_is_read(tmp_path: Path) -> None:
    model = build("vit_small_patch16_224", **SMALL)
    text = describe(model).model_dump_json()
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()},
        tmp_path / "w.safetensors",
        {"diffusionlens": text},
    )
    loaded = load_model(str(tmp_path / "w.safetensors")).model
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
