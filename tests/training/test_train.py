"""A whole run, in this process: what it leaves, and what it refuses."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image

from diffusionlens import load_model
from diffusionlens.errors import InputError
from diffusionlens.models.run_directory import find_weights, is_run, list_weights
from diffusionlens.training import loop
from diffusionlens.training.checkpoints.run_directory import RunDirectory
from diffusionlens.training.dino.step import Learner
from diffusionlens.training.dino.timetable import Now
from diffusionlens.training.monitoring.log import read_log
from diffusionlens.training.train import train
from tests.training.tiny import DATA, TINY, largest_difference, tiny, weights, without_key_biases


def run(out: Path, recipe: str = "tiny_scenes_softmax", *settings: str, data: str = DATA, resume: bool = False) -> Path:
    done = train(recipe, data, out, settings=tiny(*settings), resume=resume)
    assert done is not None
    assert (done.status, done.step) == ("complete", done.total)
    return out


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs") / "softmax")


@pytest.mark.slow
def test_the_demos_recipe_makes_a_run_that_load_model_opens(tmp_path: Path) -> None:
    train("tiny_scenes_entmax15", "scenes:?n=64", tmp_path / "run", settings=["length=5 steps", "batch_size=32"])
    backbone = load_model(str(find_weights(tmp_path / "run")))
    assert backbone.origin.attention == "entmax15"
    assert (backbone.depth, backbone.width, backbone.native_size) == (6, 64, (40, 40))
    teacher = weights(tmp_path / "run")
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, teacher[f".teacher.backbone.{name}"])
    lines = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [5]
    assert 1 < lines[0]["attention_support"] < 26


def test_what_a_run_holds(softmax: Path) -> None:
    names = sorted(path.relative_to(softmax).as_posix() for path in softmax.rglob("*") if path.is_file())
    assert names == [
        ".lock",
        "checkpoints/epoch_0003.pt",  # 40 pictures, batches of 16: two steps an epoch
        "checkpoints/last.pt",
        "checkpoints/step_00000003.pt",
        "log.jsonl",
        "manifest.json",
        "recipe.yaml",
        "teacher/epoch_0000.safetensors",
        "teacher/epoch_0003.safetensors",
        "teacher/last.safetensors",
        "teacher/step_00000003.safetensors",
    ]
    manifest = json.loads((softmax / "manifest.json").read_text())
    assert (manifest["status"], manifest["step"], manifest["steps_per_epoch"]) == ("complete", 6, 2)
    assert is_run(softmax)
    assert [(one.epoch, one.step, one.name) for one in list_weights(softmax)] == [
        (0, 0, "epoch=0"),
        (1.5, 3, "step=3"),
        (3, 6, "epoch=3"),
    ]


def test_the_log(softmax: Path) -> None:
    lines = [line for line in read_log(softmax / "log.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert 0 < line["sample_entropy"] <= line["teacher_entropy"] <= np.log(64)
        assert line["kl"] == pytest.approx(line["loss"] - line["sample_entropy"], abs=1e-5)
        assert line["entropy_gap"] == pytest.approx(line["teacher_entropy"] - line["loss"], abs=1e-5)
        assert line["images_per_second"] > 0
        assert 0 <= line["data_wait"] <= 1
    # AdamW's peak after two steps of warm-up, at a batch of 16: 2e-3 * 16 / 64.
    assert [line["lr"] for line in lines[:2]] == pytest.approx([0, 5e-4])
    assert [line["momentum"] for line in lines] == pytest.approx(
        [1 - 0.01 * (1 + np.cos(np.pi * i / 6)) for i in range(6)]
    )


def test_weights_of_a_moment(softmax: Path) -> None:
    assert find_weights(softmax, "epoch=3").name == "epoch_0003.safetensors"
    assert find_weights(softmax, "step=6").name == "epoch_0003.safetensors"
    assert find_weights(softmax, "step=3").name == "step_00000003.safetensors"
    with pytest.raises(InputError, match="kept no weights of epoch=2; it has epoch=0, step=3, epoch=3"):
        find_weights(softmax, "epoch=2")
    with pytest.raises(InputError, match="wanted @epoch=N or @step=N"):
        find_weights(softmax, "best")
    with pytest.raises(InputError, match="not a training run"):
        find_weights(softmax / "teacher")


@pytest.mark.parametrize(("registers", "options"), [(0, {}), (4, {"reg_tokens": 4, "no_embed_class": True})])
def test_softmax_models_open_in_timm_alone(tmp_path: Path, registers: int, options: dict[str, object]) -> None:
    """The three lines of docs/training.md."""
    out = run(tmp_path / "run", "tiny_scenes_softmax", f"model.registers={registers}", "length=2 steps")
    file = str(find_weights(out))
    size = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **size, **options)
    model.load_state_dict(safetensors.torch.load_file(file))
    backbone = load_model(file)
    assert backbone.registers == registers
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), backbone.model(images))


def test_specialised_models_train_and_open(tmp_path: Path) -> None:
    out = run(tmp_path / "run", "tiny_scenes_softmax", "model.specialize=cls_patch", "length=2 steps")
    assert "specialised" in load_model(str(find_weights(out))).origin.architecture


def test_training_changes_student_and_teacher_apart(softmax: Path) -> None:
    first = safetensors.torch.load_file(softmax / "teacher" / "epoch_0000.safetensors")
    last = weights(softmax)
    moved = {name: float((last[f".teacher.backbone.{name}"] - first[name]).abs().max()) for name in first}
    ahead = {name: float((last[f".student.backbone.{name}"] - first[name]).abs().max()) for name in first}
    assert min(ahead.values()) > 0
    assert all(0 < moved[name] < ahead[name] for name in first if "weight" in name)


def test_workers_and_parts_change_nothing(softmax: Path, tmp_path: Path) -> None:
    """The recipe starts its centre at the first batch's mean, which is that of all its parts."""
    same = ["model.drop_path=0.0"]  # what is random in the network is drawn part by part
    plain = weights(run(tmp_path / "plain", "tiny_scenes_softmax", *same))
    workers = weights(run(tmp_path / "workers", "tiny_scenes_softmax", *same, "run.workers=2"))
    assert largest_difference(plain, workers) == 0
    plain = without_key_biases(plain)
    for count in (2, 3):  # 16 pictures in parts of 8 and 8, of 6, 6 and 4
        parts = run(tmp_path / f"parts{count}", "tiny_scenes_softmax", *same, f"run.accumulate={count}")
        assert largest_difference(plain, without_key_biases(weights(parts)), "student", "teacher", "loss") < 1e-6
        for one, other in zip(numbers(tmp_path / "plain"), numbers(parts), strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=2e-5)
    other = without_key_biases(weights(softmax))
    assert largest_difference(plain, other, "student", "teacher", "loss") > 1e-3  # stochastic depth does change it


def numbers(run: Path) -> list[dict[str, float]]:
    """What the log says of each step, but for its speed."""
    timed = {"time", "images_per_second", "data_wait"}
    lines = [line for line in read_log(run / "log.jsonl") if "loss" in line]
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def test_colours_in_workers_and_on_the_device_train_alike(tmp_path: Path) -> None:
    losses = []
    for place in ("workers", "device"):
        out = run(tmp_path / place, "tiny_scenes_softmax", f"augmentation.place={place}", "length=2 steps")
        losses.append([line["loss"] for line in read_log(out / "log.jsonl") if "loss" in line])
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)  # workers round to 8 bits


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    out = run(tmp_path / "run", "tiny_scenes_softmax", "checkpoint.every=1 epoch", "checkpoint.keep=1")
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["epoch_0003.pt", "last.pt"]
    assert len(list((out / "teacher").iterdir())) == 5  # 0 to 3 and the last: weights all stay


def test_a_new_run_starts_from_the_weights_of_another(softmax: Path, tmp_path: Path) -> None:
    file = find_weights(softmax)
    out = run(tmp_path / "run", "tiny_scenes_entmax15", f"init_from={file}", "seed=5")
    given = safetensors.torch.load_file(file)
    first = safetensors.torch.load_file(out / "teacher" / "epoch_0000.safetensors")
    assert all(torch.equal(first[name], given[name]) for name in given)
    with pytest.raises(InputError, match=r"init_from=.* does not fit the recipe's model: .* differ in name or shape"):
        train("mini_softmax", DATA, tmp_path / "no", settings=["batch_size=16", f"init_from={file}"])
    assert not (tmp_path / "no").exists()


def test_unreadable_pictures_are_replaced_and_counted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for place in range(20):
        pixels = np.random.default_rng(place).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / f"{place:02d}.png")
    (tmp_path / "data" / "05.png").write_bytes(b"no picture")
    (tmp_path / "data" / "06.png").write_bytes(b"")
    out = run(tmp_path / "run", data=f"folder:{tmp_path / 'data'}")
    skipped = json.loads((out / "manifest.json").read_text())["skipped"]
    assert sorted(Path(file).name for file in skipped) == ["05.png", "06.png"]
    assert weights(out)  # and training went on
    for file in (tmp_path / "data").iterdir():
        file.write_bytes(b"no picture")
    with pytest.raises(InputError, match="20 pictures in a row can't be read"):
        train("tiny_scenes_softmax", f"folder:{tmp_path / 'data'}", tmp_path / "none", settings=TINY)


class DyingSource:
    """Kills the process that opens its pictures."""

    label, spec, provides, classes, skipped = "dying", "dying:x", frozenset(), (), []

    def __len__(self) -> int:
        return 40

    def name(self, index: int) -> str:
        return str(index)

    def open(self, index: int) -> None:
        os._exit(7)


def test_a_dead_worker_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        train("tiny_scenes_softmax", DyingSource(), tmp_path / "run", settings=tiny("run.workers=1"))  # type: ignore[arg-type]
    assert "a process that reads pictures died" in str(caught.value)
    assert "the last good checkpoint is" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "failed"


def test_a_loss_that_is_not_finite_stops_and_names_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.train_step

    def broken(learner: Learner, views: list[torch.Tensor], now: Now, *arguments: Any, **options: Any) -> Any:
        if now.momentum > 0.984:  # from the third step on
            views[0][0] = torch.nan
        return step(learner, views, now, *arguments, **options)

    monkeypatch.setattr(loop, "train_step", broken)
    settings = tiny("checkpoint.save=1 steps")
    with pytest.raises(
        InputError, match=r"^the loss is not finite.* at step 3; the last good checkpoint is .*last.pt \(step 2\)"
    ):
        train("tiny_scenes_softmax", DATA, tmp_path / "run", settings=settings)
    kept = weights(tmp_path / "run")
    assert all(torch.isfinite(value).all() for name, value in kept.items() if value.is_floating_point())


def test_one_epoch_with_ramps_of_one_epoch(tmp_path: Path) -> None:
    """The shortest run by epochs: every schedule begins and ends in two steps."""
    ramps = [
        f"{key}=1 epochs" for key in ("optimizer.warmup", "teacher.temperature_warmup", "optimizer.freeze_last_layer")
    ]
    out = run(tmp_path / "run", "tiny_scenes_softmax", "length=1 epochs", *ramps)
    lines = [line for line in read_log(out / "log.jsonl") if "loss" in line]
    assert [line["lr"] for line in lines] == pytest.approx([0, 5e-4])
    assert [line["epoch"] for line in lines] == [0.5, 1]


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = RunDirectory.save

    def full(self: RunDirectory, content: dict[str, object], *arguments: object, **options: object) -> None:
        if content["step"] == 3:
            raise InputError("last.pt could not be written (No space left on device)")
        write(self, content, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(RunDirectory, "save", full)
    out = run(tmp_path / "run")
    assert "warning: step 3: last.pt could not be written (No space left" in capsys.readouterr().err
    assert [line["step"] for line in read_log(out / "log.jsonl") if line.get("event") == "checkpoint"] == [0, 6]

    def always(*_: object, **__: object) -> None:
        raise InputError("last.pt could not be written (No space left on device)")

    monkeypatch.setattr(RunDirectory, "save", always)
    with pytest.raises(InputError, match=r"No space left on device.*; there is no checkpoint yet"):
        run(tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "data", "message"),
    [
        (
            ["seed=1"],
            DATA,
            r"the recipe is not that of the run in .* \(run -> given\): seed: 0 -> 1. Give the run's own",
        ),
        (["length=9 steps", "head.out_dim=32"], DATA, "head.out_dim: 64 -> 32; length: 6 steps -> 9 steps"),
        ([], "scenes:?n=41&size=32", "was trained on scenes:.n=40&size=32 .40 pictures., and scenes:.n=41"),
        ([], "scenes:?n=40&size=48", "give the same pictures"),
    ],
)
def test_another_run_is_not_resumed(softmax: Path, settings: list[str], data: str, message: str) -> None:
    before = (softmax / "manifest.json").read_bytes()
    with pytest.raises(InputError, match=message):
        train("tiny_scenes_softmax", data, softmax, settings=tiny(*settings), resume=True)
    assert (softmax / "manifest.json").read_bytes() == before


def test_a_run_is_not_overwritten(softmax: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a run; continue it with --resume"):
        train("tiny_scenes_softmax", DATA, softmax, settings=TINY)
    with pytest.raises(InputError, match="without --resume a new run begins there"):
        train("tiny_scenes_softmax", DATA, tmp_path / "none", settings=TINY, resume=True)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="holds something that is not a run"):
        train("tiny_scenes_softmax", DATA, tmp_path, settings=TINY)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batch_size=64", "the data hold 40 pictures, fewer than one batch of 64"),
        ("optimizer.warmup=10 epochs", "warmup .10 epochs.*20 steps, the whole run 6"),
        ("crops.local_size=20", "crops.local_size is 20, and vit_tiny_patch16_224 has patches of 8 pixels; .* as 16"),
        ("model.name=vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("precision=fp16", "fp16, which is for GPUs"),
        ("run.device=tpu9", "wanted auto, cpu, cuda"),
        ("run.tensorboard=true", "pip install 'diffusionlens.tensorboard.'"),
    ],
)
def test_impossible_runs_are_refused_and_leave_nothing(setting: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train("tiny_scenes_softmax", DATA, tmp_path / "run", settings=tiny(setting))
    assert not (tmp_path / "run").exists()
