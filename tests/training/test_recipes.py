"""Recipes: the shipped ones are whole, differ by what they say, and a wrong key is one clear line."""

from pathlib import Path

import pytest

from diffusionlens.errors import InputError
from diffusionlens.training.recipe import duration_steps
from diffusionlens.training.recipe_files import RECIPES, differences, known_keys, read_recipe, write_recipe

OVERLAYS = {"boosted"}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(set(RECIPES.shipped()) - OVERLAYS))
def test_shipped_recipes_are_whole(name: str) -> None:
    recipe = read_recipe(name)
    head = RECIPES.shipped()[name].read_text().splitlines()
    assert head[0].startswith("# ")
    assert any(line.startswith("#   ") and f"train {name}" in line for line in head[:8]) or name == "dino_vits16"
    assert read_recipe(RECIPES.shipped()[name]) == recipe  # by path as by name


def test_there_are_recipes() -> None:
    assert {"dino_vits16", "boosted", "mini_softmax", "tiny_scenes_entmax15"} <= set(RECIPES.shipped())


@pytest.mark.parametrize(
    ("name", "base", "difference"),
    [
        ("dino_vits16_softmax", "dino_vits16", []),
        ("dino_vits16_entmax15", "dino_vits16", ["model.attention: softmax -> entmax15"]),
        ("dino_vits16_reg4", "dino_vits16", ["model.registers: 0 -> 4"]),
        ("dino_vits16_specialized", "dino_vits16", ["model.specialize: none -> cls_patch"]),
        ("mini_entmax15", "mini_softmax", ["model.attention: softmax -> entmax15"]),
        ("tiny_scenes_entmax15", "tiny_scenes_softmax", ["model.attention: softmax -> entmax15"]),
    ],
)
def test_variants_differ_by_one_line(name: str, base: str, difference: list[str]) -> None:
    assert differences(read_recipe(base), read_recipe(name)) == difference


def test_the_base_is_dinos() -> None:
    """Against the defaults of main_dino.py."""
    recipe = read_recipe("dino_vits16")
    assert recipe.peak_lr == 5e-4 * 1024 / 256
    optimizer = recipe.optimizer
    assert (optimizer.weight_decay, optimizer.weight_decay_end, optimizer.clip, optimizer.lr_end) == (
        0.04,
        0.4,
        3,
        1e-6,
    )
    assert (recipe.head.out_dim, recipe.head.hidden, recipe.head.bottleneck) == (65536, 2048, 256)
    assert recipe.augmentation.blur == (1.0, 0.1, 0.5)
    assert recipe.augmentation.solarize == (0.0, 0.2, 0.0)
    assert (recipe.teacher.momentum, recipe.teacher.temperature) == (0.996, 0.04)
    assert (recipe.crops.global_scale, recipe.crops.local_scale) == ((0.4, 1.0), (0.05, 0.4))


def test_overlays_and_settings() -> None:
    recipe = read_recipe("dino_vits16_entmax15", ["boosted"], ["length=200 epochs", "optimizer.lr=1e-3", "seed=7"])
    assert (recipe.teacher.temperature, recipe.head.norm_last_layer, recipe.length) == (0.07, False, "200 epochs")
    assert (recipe.optimizer.lr, recipe.seed, recipe.model.attention) == (1e-3, 7, "entmax15")
    assert recipe.head.out_dim == 65536  # the overlay's section keeps what it does not name


def test_own_recipes_extend_files_and_several(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: [tiny_scenes_softmax, ./warm.yaml]\nseed: 4\n")
    (tmp_path / "warm.yaml").write_text("optimizer: {warmup: 7 steps}\nseed: 3\n")
    recipe = read_recipe(tmp_path / "mine.yaml")
    assert (recipe.optimizer.warmup, recipe.optimizer.lr, recipe.seed) == ("7 steps", 2e-3, 4)


def test_a_written_recipe_reads_as_itself(tmp_path: Path) -> None:
    recipe = read_recipe("mini_entmax15", [], ["optimizer.clip=null", "model.options.mlp_ratio=2.5"])
    (tmp_path / "recipe.yaml").write_text(write_recipe(recipe))
    assert read_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.lrr=1", "--set optimizer.lrr=1 is not a key of a recipe; did you mean optimizer.lr?"),
        ("lr=1", "did you mean optimizer.lr?"),
        ("optimizer.lr=fast", "optimizer.lr=fast: wanted a number"),
        ("seed=1.5", "wanted a whole number"),
        ("batch_size=true", "wanted a whole number"),
        ("model.attention=entmax", "'softmax', 'entmax15' or 'sparsemax'"),
        ("crops.global_scale=[0.9,0.1]", "ascending order"),
        ("crops.global_scale=[0.5]", "too few values"),
        ("optimizer.warmup=10", "wanted a number of epochs or steps"),
        ("length=5 %", "length is a share"),
        ("optimizer.lr", "wanted key=value"),
        ("optimizer.lr=[1", "not a YAML value"),
    ],
)
def test_a_wrong_setting_is_one_line(setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_recipe("tiny_scenes_softmax", [], [setting])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: dino_vits61", "did you mean 'dino_vits16'?"),
        ("extends: bad", "extends itself"),
        ("extends: tiny_scenes_softmax\nseed: 1\nseed: 2", "'seed' is given twice"),
        ("seed: [1", "not YAML"),
        ("- 1", "holds no keys"),
        ("seed: 1", "model is missing"),
        ("extends: 3", "wanted the name of a recipe"),
        ("extends: tiny_scenes_softmax\nhead: {outdim: 3}", "did you mean head.out_dim?"),
    ],
)
def test_a_wrong_recipe_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_recipe(tmp_path / "bad.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_durations() -> None:
    assert duration_steps("10 epochs", 31) == 310
    assert duration_steps("0.5 epochs", 31) == 16
    assert duration_steps("400 steps", 31) == 400
    assert duration_steps("10 %", 31, total=400) == 40


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    assert [key for key in known_keys() if f"`{key}`" not in text] == []
