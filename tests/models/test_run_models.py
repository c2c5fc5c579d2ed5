"""MODEL as a training run, one of its moments, or a whole checkpoint: on a run that was really trained, four steps long."""

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusionlens import load_model, measure
from diffusionlens.cli import main
from diffusionlens.models.run_directory import find_weights, list_weights
from diffusionlens.training.train import train
from tests.models.files import refused
from tests.training.tiny import DATA, tiny, weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pictures in batches of 16: epochs of two steps; weights of every step, whole checkpoints of the last two."""
    out = tmp_path_factory.mktemp("runs") / "sparse"
    settings = tiny("length=4 steps", "checkpoint.save=1 steps", "checkpoint.every=1 steps", "checkpoint.keep=2")
    train("tiny_scenes_entmax15", DATA, out, settings=settings)
    return out


def same(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(value, state[key]) for key, value in own.items())


def branch(run: Path, checkpoint: str, name: str) -> dict[str, torch.Tensor]:
    start = f".{name}.backbone."
    return {key.removeprefix(start): value for key, value in weights(run, checkpoint).items() if key.startswith(start)}


def test_a_run_is_the_teacher_of_its_last_checkpoint(run: Path) -> None:
    backbone = load_model(str(run))
    assert same(backbone.model, branch(run, "last", "teacher"))
    origin = backbone.origin
    assert (backbone.label, origin.branch, origin.epoch, origin.step, origin.attention) == (
        "sparse",
        "teacher",
        2,
        4,
        "entmax15",
    )
    assert load_model(f"mine={run}").label == "mine"
    assert load_model(f"{run}/").label == "sparse"


@pytest.mark.parametrize(
    ("at", "file", "epoch", "step"),
    [
        ("epoch=0", "epoch_0000", 0, 0),
        ("step=1", "step_00000001", 0, 1),
        ("epoch=1", "epoch_0001", 1, 2),
        ("step=4", "epoch_0002", 2, 4),
    ],
)
def test_moments(at: str, file: str, epoch: int, step: int, run: Path) -> None:
    backbone = load_model(f"{run}@{at}")
    assert same(backbone.model, load_file(run / "teacher" / f"{file}.safetensors"))
    assert (backbone.label, backbone.origin.epoch, backbone.origin.step) == (f"sparse@{at}", epoch, step)


def test_moments_differ(run: Path) -> None:
    states = [load_file(weights.path) for weights in list_weights(run)]
    assert len(states) == 5
    for one, other in pairwise(states[1:]):  # the first step has a learning rate of 0
        assert any(not torch.equal(one[key], other[key]) for key in one)


def test_the_student(run: Path) -> None:
    student = load_model(f"{run}?branch=student")
    assert same(student.model, branch(run, "last", "student"))
    assert not same(student.model, branch(run, "last", "teacher"))
    assert (student.origin.branch, student.origin.step, student.origin.attention) == ("student", 4, "entmax15")
    assert "optimizer" in dict(student.origin.dropped)
    earlier = load_model(f"{run}@step=3?branch=student")
    assert same(earlier.model, branch(run, "step_00000003", "student"))
    refused(f"{run}@epoch=1?branch=student", r"kept no whole checkpoint of epoch=1; it has step=3, epoch=2")
    refused(f"{run}?branch=head", "wanted one of teacher, student")


def test_a_whole_checkpoint_by_its_file(run: Path, tmp_path: Path) -> None:
    """Its weights say nothing of the attention: without the run beside it an entmax model would run with softmax."""
    file = run / "checkpoints" / "last.pt"
    assert same(load_model(str(file)).model, branch(run, "last", "teacher"))
    assert load_model(str(file)).origin.attention == "entmax15"
    assert same(load_model(f"{file}?branch=student").model, branch(run, "last", "student"))
    shutil.copy(file, tmp_path / "taken.pt")
    refused(tmp_path / "taken.pt", "outside its run")


def test_other_options(run: Path) -> None:
    softmax = load_model(f"{run}@epoch=1?attention=softmax&positions=timm")
    assert (softmax.origin.attention, softmax.position_rule) == ("softmax", "timm")
    for option in ("heads=2", "timm=vit_tiny_patch16_224", "img_size=24", "normalize=half"):
        refused(f"{run}?{option}", option.partition("=")[0])


@pytest.mark.parametrize(
    "at", ["epoch=7", "step=9", "epoch=", "epoch=x", "epoch=²", "epoch=-1", "step=1.5", "epoch", "step=" + "9" * 50]
)
def test_moments_that_are_not_there(at: str, run: Path) -> None:
    refused(
        f"{run}@{at}",
        "kept no weights of .* it has epoch=0, step=1, epoch=1, step=3, epoch=2|wanted @epoch=N or @step=N",
    )


def test_what_is_no_run(run: Path, tmp_path: Path) -> None:
    refused(tmp_path, "is a folder, and no training run")
    refused(f"{tmp_path}@epoch=1", "is no training run")
    refused(f"{tmp_path / 'gone'}@epoch=1", "does not exist")
    refused(f"{run / 'teacher'}@epoch=1", "is no training run")
    for damage in ("{", '{"steps_per_epoch": 0}', '{"steps_per_epoch": "x"}', "[]", "[" * 100_000):
        copy = tmp_path / "copy"
        shutil.copytree(run, copy, dirs_exist_ok=True)
        (copy / "manifest.json").write_text(damage)
        refused(f"{copy}@epoch=1", "manifest.json is damaged")
    shutil.copy(run / "manifest.json", copy / "manifest.json")
    (copy / "teacher" / "last.safetensors").write_bytes(b"\x00\xff" * 50)
    refused(copy, "not a whole safetensors file")
    for file in (copy / "teacher").iterdir():
        file.unlink()
    refused(copy, "no weights yet")


def test_the_manifest_names_moment_and_attention(run: Path, tmp_path: Path) -> None:
    done = measure(
        [f"{run}@epoch=0", str(run)], "scenes:?n=2&size=32", tmp_path / "out", analyses="norms", layers="last"
    )
    assert done is not None
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())["models"]
    facts = [(model["label"], model["epoch"], model["step"], model["attention"], model["branch"]) for model in told]
    assert facts == [("sparse@epoch=0", 0, 0, "entmax15", "teacher"), ("sparse", 2, 4, "entmax15", "teacher")]


def test_check_lists_the_checkpoints(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "check", str(run)])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    printed = capsys.readouterr().out
    assert "checkpoints   epoch=0, step=1, epoch=1, step=3, epoch=2" in printed
    assert "trained       epoch 2, step 4" in printed
    assert "entmax15 attention" in printed


def test_a_new_run_starts_from_a_run(run: Path, tmp_path: Path) -> None:
    settings = tiny("length=1 steps", "optimizer.warmup=1 steps", f"init_from={run}@epoch=1")
    train("tiny_scenes_entmax15", DATA, tmp_path / "next", settings=settings)
    assert same(load_model(f"{tmp_path / 'next'}@epoch=0").model, load_file(find_weights(run, "epoch=1")))
