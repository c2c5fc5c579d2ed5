"""The four shipped recipes in their full size, one step long: softmax models open in timm alone, by the lines that
docs/training.md shows; all of them open with load_model, as they were trained."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from diffusionlens import load_model
from diffusionlens.attention.layers import alpha_of, attention_modules
from diffusionlens.training.train import train
from tests.training.tiny import ROOT

SHORT = [
    "length=1 steps",
    "optimizer.warmup=1 steps",
    "teacher.temperature_warmup=1 steps",
    "optimizer.freeze_last_layer=0 steps",
    "batch_size=2",
    "head.out_dim=64",
    "crops.local_count=1",
    "run.device=cpu",
    "run.workers=0",
]


def trained(recipe: str, out: Path) -> Path:
    train(f"dino_vits16_{recipe}", "scenes:?n=2&size=224", out, settings=SHORT)
    return out


def documented_lines() -> str:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "# needs: runs/softmax" in text)
    return block


def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def features(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model.forward_features(pictures())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["softmax", "reg4"])
def test_softmax_models_open_in_timm_alone(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(recipe, tmp_path / "runs" / "softmax")
    monkeypatch.chdir(tmp_path)
    lines = documented_lines()
    assert "diffusionlens" not in lines
    if recipe == "reg4":  # as the comment of the line says
        lines = lines.replace("num_classes=0)", "num_classes=0, reg_tokens=4, no_embed_class=True)")
    names: dict[str, nn.Module] = {}
    exec(compile(lines, "docs/training.md", "exec"), names)
    assert type(names["model"]).__module__.startswith("timm.")
    backbone = load_model("runs/softmax")
    assert backbone.registers == (4 if recipe == "reg4" else 0)
    assert torch.equal(features(names["model"]), features(backbone.model))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["entmax15", "specialized"])
def test_the_others_open_as_they_were_trained(recipe: str, tmp_path: Path) -> None:
    run = trained(recipe, tmp_path / "run")
    backbone = load_model(str(run))
    alphas = {alpha_of(module) for module in attention_modules(backbone.model.blocks)}  # type: ignore[arg-type]
    assert alphas == {1.5 if recipe == "entmax15" else 1.0}
    assert ("specialised" in backbone.origin.architecture) == (recipe == "specialized")
    content = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["teacher"]
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, content[f"backbone.{key}"])
    if recipe == "entmax15":  # the same weights with softmax are another network: what timm alone would make of them
        assert not torch.allclose(
            features(load_model(f"{run}?attention=softmax").model), features(backbone.model), atol=1e-3
        )
