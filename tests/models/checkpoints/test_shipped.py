"""The small trained models that come with the package."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from diffusionlens import InputError, load_model
from diffusionlens.models import save_model
from diffusionlens.models.checkpoints.shipped import shipped_models
from diffusionlens.training.recipe_files import recipe_from

NAMES = [
    "mini_entmax15_seed0", "mini_entmax15_seed1", "mini_softmax_seed0", "mini_softmax_seed1", "mini_untrained_seed0",
    "mini_untrained_seed1",
]  # fmt: skip


def test_they_are_all_there_and_small() -> None:
    assert sorted(shipped_models()) == NAMES
    assert sum(path.stat().st_size for path in shipped_models().values()) <= 10e6


@pytest.mark.parametrize("name", NAMES)
def test_one_opens_with_its_recipe(name: str) -> None:
    backbone = load_model(f"shipped:{name}")
    _, kind, seed = name.split("_")
    origin = backbone.origin
    assert origin.attention == ("entmax15" if kind == "entmax15" else "softmax")
    assert origin.untrained == (kind == "untrained")
    assert (origin.step == 0) == origin.untrained
    recipe = recipe_from(origin.recipe, name)
    assert recipe.seed == int(seed.removeprefix("seed"))
    assert recipe.model.attention == origin.attention
    with safe_open(shipped_models()[name], "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118  (no mapping)
    assert backbone.label == name
    tokens = backbone.model.forward_features(torch.zeros(1, 3, *backbone.native_size))
    assert tokens.isfinite().all()


def test_seeds_and_trainings_are_different_networks() -> None:
    weights = [load_model(f"shipped:{name}").model.blocks[0].attn.qkv.weight for name in NAMES]
    for place, one in enumerate(weights):
        assert all(not torch.equal(one, other) for other in weights[:place])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"no model 'shipped:mini_softmax_seed9'.*did you mean shipped:mini_softmax_seed"
    ):
        load_model("shipped:mini_softmax_seed9")


def test_saved_again_it_keeps_its_recipe(tmp_path: Path) -> None:
    backbone = load_model(f"shipped:{NAMES[0]}")
    save_model(tmp_path / "again.safetensors", backbone, torch.float16)
    with safe_open(tmp_path / "again.safetensors", "pt") as file:
        assert json.loads(file.metadata()["diffusionlens"])["recipe"] == backbone.origin.recipe
    again = load_model(str(tmp_path / "again.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), backbone.model.parameters(), strict=True))
