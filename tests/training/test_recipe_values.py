"""Every key of a recipe with every kind of nasty value: refused in one line before anything is written, or it trains a step."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from diffusionlens.documents import DocumentKind
from diffusionlens.errors import InputError
from diffusionlens.training.recipe_files import known_keys, read_recipe
from diffusionlens.training.train import train
from tests.training.tiny import tiny

DATA = "scenes:?n=2&size=32"
SHORT = (
    "length=1 steps", "batch_size=2", "optimizer.warmup=0 steps", "optimizer.freeze_last_layer=0 steps",
    "model.options={patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}", "model.drop_path=0.0", "head.hidden=8",
)  # fmt: skip

# As YAML. Long lists and huge sizes of what is really made (views, prototypes, workers) are not among what is accepted.
NASTY = (
    "-1", "-0.0", "0", "1e-300", "1.5", "1e300", "1e999", "100000000000000000000", ".nan", "true", "null", "x", "''", "[]", "{}",
    "[2, 1]", "[0, 0]", "[true, true]", "[1e-300, 1]", "[1, 1e300]", "[-1, 1, 1]", "[1, 1, 1]", "[1, 1, 1e999]",
    "0 steps", "0 %", "500 %", "0.0001 epochs", "1.5 steps", "-1 epochs", "٣ steps", "99999999999999999999 epochs", "2020-13-45",
)  # fmt: skip
OPTIONS = (
    "{}", "{patch_size: 0}", "{patch_size: -8}", "{in_chans: 1}", "{depth: 0}", "{depth: -1}", "{embed_dim: 0}", "{num_heads: 0}",
    "{num_heads: 3}", "{class_token: false}", "{mlp_ratio: 0}", "{mlp_ratio: x}", "{unknown: 1}", "{drop_path_rate: 0.5}",
    "{img_size: 5}", "{img_size: 32}", "{pretrained: true}", "{global_pool: avg}", "{num_classes: 5}", "{act_layer: nope}",
    "{proj_drop_rate: 2}", "{dynamic_img_size: true}", "{init_values: 1e999}", "{embed_dim: true}", "{depth: 1e9}", "{3: 4}",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def recipes_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DocumentKind, "read", cache(DocumentKind.read))
        yield


def outcome(setting: str, out: Path) -> str:
    """The line of a refusal, or "" where a step was trained."""
    settings = [one for one in tiny(*SHORT) if one.split("=")[0] != setting.split("=")[0]]
    try:
        done = train("tiny_scenes_softmax", DATA, out, settings=[*settings, setting])
    except InputError as error:
        line = str(error)
    else:
        assert done is not None
        assert (done.status, done.step) == ("complete", done.total), setting
        return ""
    assert not out.exists(), f"{setting}: {line}"
    return line


@pytest.mark.parametrize("key", list(known_keys()))
def test_a_value_is_refused_or_trains(key: str, tmp_path: Path) -> None:
    refused = 0
    for place, value in enumerate(NASTY):
        if (key, value) == ("run.compile", "true"):  # takes half a minute, and is what it should be
            continue
        line = outcome(f"{key}={value}", tmp_path / f"run{place}")
        refused += bool(line)
        assert "\n" not in line
        # Of the model another line may speak: options that are as they should, and fit no other key; a name that timm lacks.
        assert not line or key.split(".")[-1] in line or key in ("model.options", "model.name"), line
    assert refused >= len(NASTY) / 3  # no key takes everything


@pytest.mark.parametrize("value", OPTIONS)
def test_options_of_the_model(value: str, tmp_path: Path) -> None:
    outcome(f"model.options={{patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2, {value[1:]}", tmp_path / "run")
    outcome(f"model.options={value}", tmp_path / "other")


@pytest.mark.parametrize(
    "name", ["resnet18", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224.augreg_in21k", "vit_base"]
)
def test_models_without_what_it_takes(name: str, tmp_path: Path) -> None:
    line = outcome(f"model.name={name}", tmp_path / "run")
    assert bool(line) == (not name.startswith("vit_tiny"))


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("swin_tiny_patch4_window7_224", "(SwinTransformer) has no CLS token"),
        ("convnext_tiny", "is of another kind (ConvNeXt), without one grid of patches"),
        ("vit_small_patch16_dinov3", "(Eva) has relative or rotary positions"),
        ("beit_base_patch16_224", "(Beit) has relative or rotary positions"),
    ],
)
def test_models_that_training_can_not_build(name: str, lacking: str, tmp_path: Path) -> None:
    """Said before timm is handed options of a ViT, whose answer would be "unexpected keyword depth"."""
    line = outcome(f"model.name={name}", tmp_path / "run")
    assert f"model.name={name} {lacking}; training takes a plain ViT with a CLS token" in line
    assert "vit_*" in line
    assert "deit*" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["augmentation.blur_radius=[2,1]"], "blur_radius is .2.0, 1.0.; wanted two numbers in ascending order"),
        (["optimizer.freeze_last_layer=500 %"], "wanted at most 100 %, the whole run"),
        (["optimizer.freeze_last_layer=401 steps"], "freeze_last_layer .401 steps. takes 401 steps, the whole run 400"),
        (["model.drop_path=1"], "wanted a number below 1"),
        (["checkpoint.save=0 steps"], "wanted more than 0"),
        (["checkpoint.every=0 %"], "wanted more than 0"),
        (["optimizer.lr_end=3e-3"], "lr_end is 0.003, above the peak learning rate 0.002"),
        (["crops.local_size=48"], "crops.local_size is 48, larger than crops.global_size, 40"),
        (["seed=1", "seed=2"], "--set seed is given twice; give it once"),
        (["optimizer.lr=1e-3", "optimizer={lr: 1}"], r"--set optimizer is given twice .also by optimizer.lr."),
        (["run.device=meta"], "wanted auto, cpu, cuda or cuda:N"),
    ],
)
def test_mistakes(settings: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train("tiny_scenes_softmax", "scenes:?n=64", tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_sizes_of_local_views_that_are_not_taken_do_not_matter() -> None:
    assert (
        read_recipe("tiny_scenes_softmax", settings=["crops.local_count=0", "crops.local_size=48"]).crops.local_count
        == 0
    )
