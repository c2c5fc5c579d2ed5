"""What weights do not say: taken from timm or from the user, or stated as assumed."""

import re
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from diffusionlens.capture import capture
from diffusionlens.models import load_model
from diffusionlens.models.architecture import Architecture, build
from diffusionlens.models.checkpoints.own_format import Description, save_own
from diffusionlens.models.load import _FILE_QUERY, _RUN_QUERY, _TIMM_QUERY
from tests.models.files import SIZE, clip_like, plain_vit, refused, timm_vit, written

HALF = (0.5, 0.5, 0.5)
CLIP = (0.48145466, 0.4578275, 0.40821073)
IMAGENET = (0.485, 0.456, 0.406)

# One of every fact that weights do not say: another epsilon, another activation, another mean, tables inside the blocks.
OF_TIMM = {
    "vit_tiny_patch16_224": (HALF, {}),
    "vit_base_patch16_clip_quickgelu_224": (CLIP, {"embed_dim": 64, "depth": 2, "num_heads": 2}),
    "vit_base_patch16_siglip_224": (HALF, {"embed_dim": 64, "depth": 2, "num_heads": 2}),
    "beit_base_patch16_224": (HALF, {"embed_dim": 64, "depth": 2, "num_heads": 2}),
    "eva02_tiny_patch14_224": (CLIP, {"embed_dim": 48, "depth": 2, "num_heads": 2}),
}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's large models in small, so that the tests are quick; their settings stay."""
    create = timm.create_model

    def small(name: str, **options: object) -> object:
        more = next((options for known, (_, options) in OF_TIMM.items() if known == name), {})
        return create(name, **more, **options)

    monkeypatch.setattr(timm, "create_model", small)


@pytest.mark.parametrize("name", list(OF_TIMM))
def test_a_file_of_a_timm_model_named(name: str, narrow: None, tmp_path: Path) -> None:
    model = timm_vit(name)
    path = written({"state_dict": {**model.state_dict(), "head.weight": torch.ones(3, 64)}}, tmp_path / "w.pth")
    backbone = load_model(f"{path}?timm={name}")
    images = torch.randn(2, 3, *backbone.native_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(backbone.model.forward_features(images), model.forward_features(images))
    assert backbone.preprocessing.mean == OF_TIMM[name][0]
    assert backbone.origin.family == f"timm {name}"
    assert ("head.weight", "head") in backbone.origin.dropped
    assert load_model(f"{path}?timm={name}&normalize=imagenet").preprocessing.mean == IMAGENET


def test_weights_of_another_timm_model_are_refused(tmp_path: Path) -> None:
    path = written(plain_vit().state_dict(), tmp_path / "w.pth")
    refused(f"{path}?timm=vit_tiny_patch16_224", r"wanted \(1, 197, 192\)|lacks \d+ weights")
    refused(f"{path}?timm=vit_tinny_patch16_224", r"did you mean '\?timm=vit_tiny_patch16_224'")
    refused(f"{path}?timm=resnet18", "no single grid of patch tokens")
    refused(f"{path}?timm=vit_tiny_patch16_224&heads=3", r"\?heads")


@pytest.mark.parametrize(("name", "mean"), [("imagenet", IMAGENET), ("half", HALF), ("clip", CLIP)])
def test_normalization_given(name: str, mean: tuple[float, ...], tmp_path: Path) -> None:
    path = written(plain_vit().state_dict(), tmp_path / "w.pth")
    backbone = load_model(f"{path}?normalize={name}")
    assert backbone.preprocessing.mean == mean
    assert "mean" not in " ".join(backbone.origin.notes)  # nothing is assumed of it
    refused(f"{path}?normalize=imagnet", "wanted one of imagenet, half, clip")


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    backbone = load_model(str(written(plain_vit().state_dict(), tmp_path / "w.pth")))
    notes = " ".join(backbone.origin.notes)
    for fact in ("0.485", "GELU", "?timm=NAME", "1 heads assumed", "?positions=timm"):
        assert fact in notes


def test_an_epsilon_of_1e_5_goes_with_a_norm_in_front(tmp_path: Path) -> None:
    model = clip_like()
    with torch.no_grad():
        model.norm_pre.weight.mul_(1e-3)  # what comes next is so small that its norm's epsilon shows
        model.norm_pre.bias.mul_(1e-3)
    backbone = load_model(str(written(model.state_dict(), tmp_path / "clip.pth")))
    assert {layer.eps for layer in backbone.model.modules() if isinstance(layer, nn.LayerNorm)} == {1e-5}
    assert backbone.preprocessing.mean == CLIP
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.forward_features(images)
        other = plain_vit(pre_norm=True)  # as it would be with timm's epsilon
        other.load_state_dict(model.state_dict())
        assert not torch.allclose(other.forward_features(images), expected, atol=1e-4)
    found = capture(backbone, images).tokens(2)
    torch.testing.assert_close(found.flat_patches, expected[:, 1:], atol=1e-5, rtol=1e-5)
    plain = load_model(str(written(plain_vit().state_dict(), tmp_path / "plain.pth")))
    assert {layer.eps for layer in plain.model.modules() if isinstance(layer, nn.LayerNorm)} == {1e-6}


@pytest.mark.parametrize(
    "option", ["heads=3", "branch=teacher", "img_size=32", "timm=vit_tiny_patch16_224", "normalize=half"]
)
def test_our_own_file_says_all_this_itself(option: str, tmp_path: Path) -> None:
    architecture = Architecture(grid=(4, 4), patch_size=(8, 8), width=48, depth=1, heads=3, hidden=96)
    path = tmp_path / "own.safetensors"
    save_own(path, build(architecture), Description(architecture=architecture))
    assert load_model(f"{path}?positions=timm").position_rule == "timm"
    refused(f"{path}?{option}", option.partition("=")[0])


def test_the_documented_options_are_the_known_ones() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    table = page[page.index("| option |") : page.index("## Teacher and student")]
    documented = {
        name for line in table.splitlines()[2:] if line for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert documented == {key for keys in (_TIMM_QUERY, _FILE_QUERY, _RUN_QUERY) for key in keys}


def test_numbers_for_the_normalization(tmp_path: Path) -> None:
    path = written(plain_vit().state_dict(), tmp_path / "w.pth")
    found = load_model(f"{path}?mean=0.1,.2,0&std=half").preprocessing
    assert (found.mean, found.std) == ((0.1, 0.2, 0.0), HALF)
    for wrong in (
        "mean=0.5,0.5",
        "mean=0.5,0.5,2",
        "mean=a,b,c",
        "mean=nan,0,0",
        "mean=nan",
        "mean=inf",
        "mean=-1,0,0",
        "mean=imagnet",
    ):
        refused(f"{path}?{wrong}&std=half", "wanted three numbers from 0 to 1")
        refused(f"{path}?{wrong}", "wanted three numbers from 0 to 1")
    for wrong in ("std=0", "std=nan", "std=inf,1,1"):
        refused(f"{path}?{wrong}", "wanted three numbers from 0 to 1")
    refused(f"{path}?std=0,0.0,0", r"\?std=0,0.0,0 in .* wanted more than 0")
    refused(f"{path}?mean=half", r"\?mean without \?std")
    refused(f"{path}?mean=half&std=0,1,1", "more than 0")
    refused(f"{path}?normalize=half&mean=half&std=half", "give one of them")


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    written(plain_vit().state_dict(), tmp_path / "w.pth")
    assert load_model("a=~/w.pth").depth == 2


def test_a_size_that_patches_do_not_divide(tmp_path: Path) -> None:
    refused("timm:vit_tiny_patch16_224?pretrained=false&img_size=65", "img_size=65.* 64.* or .*80")
    path = written(plain_vit().state_dict(), tmp_path / "w.pth")
    refused(f"{path}?timm=vit_tiny_patch16_224&img_size=65", "img_size=65")
    refused(f"{path}?img_size=40", "40x40")
    refused(f"{path}?img_size=3²", "not a picture size")
    refused(f"{path}?heads=²", "wanted a whole number")
    refused(f"{path}?heads=0", "wanted a whole number")
