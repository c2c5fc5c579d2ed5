"""`--resume` of a run with damaged files: one line: what is wrong, which checkpoint is whole; nothing is changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diffusionlens.errors import InputError
from diffusionlens.training import loop
from diffusionlens.training.monitoring.log import read_log
from diffusionlens.training.train import Trained, train
from tests.training.tiny import DATA, largest_difference, tiny, weights

Content = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with a checkpoint of each."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train("tiny_scenes_softmax", DATA, out, settings=short())
    return out


def short(*settings: str) -> list[str]:
    return tiny("length=2 steps", "checkpoint.every=1 steps", "optimizer.warmup=0 steps", *settings)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy, as if it had been killed after its first step."""
    shutil.copytree(whole, tmp_path / "run")
    kept = tmp_path / "run" / "checkpoints"
    (kept / "epoch_0001.pt").unlink()
    shutil.copy(kept / "step_00000001.pt", kept / "last.pt")
    note(tmp_path / "run", status="running", step=1)
    return tmp_path / "run"


def note(run: Path, **facts: Any) -> None:
    file = run / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def resume(run: Path, *settings: str) -> Trained | None:
    return train("tiny_scenes_softmax", DATA, run, settings=short(*settings), resume=True)


def files(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def damage(run: Path, change: Callable[[Content], object]) -> None:
    last = run / "checkpoints" / "last.pt"
    content = torch.load(last, weights_only=True)
    change(content)
    torch.save(content, last)


def put(*path: Any, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def fill(*path: Any, value: float) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        for key in path:
            content = content[key]
        content.view(-1)[0] = value  # type: ignore[attr-defined]

    return change


def python_index_outside(content: Content) -> None:
    version, numbers, cached = content["random"][0]["python"]
    content["random"][0]["python"] = (version, (*numbers[:-1], 10**6), cached)


def lower_precision(content: Content) -> None:
    content["student"] = {name: value.half() for name, value in content["student"].items()}


HEAD = "head.last_layer.parametrizations.weight.original1"
NORM = "backbone.norm.weight"
DAMAGES = {
    **{
        f"step {value!r}": put("step", value=value)
        for value in (-3, 3, 4000, 10**30, "x", None, 1.0, True, [], torch.ones(2))
    },
    **{f"ranks {value!r}": put("ranks", value=value) for value in (0, 2, -1, "x", None)},
    **{f"random {value!r}": put("random", value=value) for value in ([], {}, None, "x", [None], [{}], [3])},
    **{
        f"{name} {value!r}": put(name, value=value)
        for name in ("student", "teacher", "optimizer", "loss", "data", "recipe", "scaler", "skipped")
        for value in (None, [], "x", 3, {"x": 1})
    },
    **{f"{name} empty": put(name, value={}) for name in ("student", "teacher", "optimizer", "loss", "data", "recipe")},
    "format": put("format", value=torch.ones(2)),
    "numpy position": put("random", 0, "numpy", 2, value=10.0**9),
    "numpy words": fill("random", 0, "numpy", 1, value=-1),
    "numpy name": put("random", 0, "numpy", 0, value="PCG64"),
    "python index": python_index_outside,
    "torch random": put("random", 0, "torch", value=torch.zeros(9, dtype=torch.uint8)),
    "torch random content": put("random", 0, "torch", value=torch.full((5056,), 255, dtype=torch.uint8)),
    "cuda random": put("random", 0, "cuda", value="x"),
    "student fewer": drop("student", NORM),
    "student more": put("student", "more", value=torch.ones(1)),
    "student shape": put("student", NORM, value=torch.ones(33)),
    "student no tensor": put("student", NORM, value=[1.0]),
    "student sparse": put("student", NORM, value=torch.ones(32).to_sparse()),
    "student half": lower_precision,
    "student nan": fill("student", NORM, value=float("nan")),
    "teacher inf": fill("teacher", HEAD, value=float("inf")),
    "centre nan": fill("loss", "center", value=float("nan")),
    "centre not started": put("loss", "_extra_state", value={"started": False}),
    "centre started 1": put("loss", "_extra_state", value={"started": 1}),
    "no moments": put("optimizer", "state", value={}),
    "moments of one missing": drop("optimizer", "state", 1),
    "moments of more": put("optimizer", "state", 10**6, value={}),
    "moments nan": fill("optimizer", "state", 1, "exp_avg", value=float("nan")),
    "moments below 0": fill("optimizer", "state", 1, "exp_avg_sq", value=-1.0),
    "moments shape": put("optimizer", "state", 1, "exp_avg", value=torch.ones(7)),
    "moments fewer": drop("optimizer", "state", 1, "exp_avg"),
    "moments of many steps": put("optimizer", "state", 1, "step", value=torch.tensor(1e9)),
    "groups": put("optimizer", "param_groups", value=[]),
    "group name": put("optimizer", "param_groups", 0, "name", value="x"),
    "group betas": put("optimizer", "param_groups", 0, "betas", value=(2.0, -1.0)),
    "group decay": put("optimizer", "param_groups", 1, "weight_decay", value=9.0),
    "group rate": put("optimizer", "param_groups", 0, "lr", value="x"),
    "group params": put("optimizer", "param_groups", 0, "params", value=[torch.ones(2)]),
    "data pictures": put("data", "pictures", value="x"),
    "recipe key": drop("recipe", "seed"),
    "recipe value": put("recipe", "optimizer", "lr", value=float("nan")),
    "skipped": put("skipped", value={1: 2}),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_whole_file_with_wrong_content(kind: str, run: Path) -> None:
    damage(run, DAMAGES[kind])
    before = files(run)
    with pytest.raises(InputError) as caught:
        resume(run)
    line = str(caught.value)
    last, other = run / "checkpoints" / "last.pt", run / "checkpoints" / "step_00000001.pt"
    assert line.startswith(f"{last} "), line
    assert f"{other} (step 1) is whole: copy it to {last} and say --resume again" in line, line
    assert "last good" not in line
    assert "\n" not in line
    assert files(run) == before


def test_the_way_back_that_is_named_leads_back(run: Path, whole: Path) -> None:
    damage(run, DAMAGES["student nan"])
    kept = run / "checkpoints"
    shutil.copy(kept / "step_00000001.pt", kept / "last.pt")
    done = resume(run)
    assert done is not None
    assert (done.status, done.step) == ("complete", 2)
    assert largest_difference(weights(run), weights(whole)) == 0


def test_no_other_checkpoint_is_whole(run: Path) -> None:
    damage(run, DAMAGES["student nan"])
    kept = run / "checkpoints"
    (kept / "step_00000001.pt").unlink()
    (kept / "step_00000001.pt").hardlink_to(kept / "last.pt")  # a numbered checkpoint and the last are one file
    (kept / "epoch_0009.pt").write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match=f"no other whole checkpoint lies in {kept}: begin a new run"):
        resume(run)
    (kept / "last.pt").write_bytes((kept / "last.pt").read_bytes()[:5000])
    with pytest.raises(InputError, match=r"not a whole weights file of torch.* no other whole checkpoint"):
        resume(run)


def test_a_checkpoint_under_another_name_or_none(run: Path) -> None:
    kept = run / "checkpoints"
    (kept / "last.pt").unlink()
    with pytest.raises(
        InputError, match=r"last.pt does not exist; copy .*step_00000001.pt to it and say --resume again"
    ):
        resume(run)
    with pytest.raises(
        InputError, match="holds a run; continue it with --resume"
    ):  # its checkpoints are worth something
        train("tiny_scenes_softmax", DATA, run, settings=short())
    (kept / "last.pt").mkdir()
    with pytest.raises(InputError, match=r"last.pt is no file; move it away"):
        resume(run)


LINES = {
    "not UTF-8": b'{"step": 1, "text": "\xff"}\n',
    "step null": b'{"step": null}\n',
    "step text": b'{"step": "1"}\n',
    "step below 0": b'{"step": -1}\n',
    "step true": b'{"step": true}\n',
    "no step": b'{"loss": 1.0}\n',
    "no object": b"[1]\n",
    "a number": b"3\n",
    "nested": b"[" * 200_000 + b"\n",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_log_of_something_else(kind: str, run: Path) -> None:
    log = run / "log.jsonl"
    log.write_bytes(log.read_bytes() + LINES[kind] + b'{"step": 1, "loss": 1.0}\n')
    number = log.read_bytes().count(b"\n") - 1
    before = files(run)
    with pytest.raises(InputError) as caught:
        resume(run)
    assert str(caught.value).startswith(f"the log {log} is damaged in line {number}; wanted UTF-8 and a JSON object")
    assert "move it away, and the run goes on with a new one" in str(caught.value)
    assert files(run) == before


def test_a_log_that_is_a_directory(run: Path) -> None:
    log = run / "log.jsonl"
    log.unlink()
    log.mkdir()
    before = files(run)
    with pytest.raises(InputError, match=r"log.jsonl can't be read .Is a directory.; move it away"):
        resume(run)
    assert files(run) == before
    log.rmdir()  # as the line says
    done = resume(run)
    assert done is not None
    assert [line["step"] for line in read_log(log) if "loss" in line] == [2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps_per_epoch": "x"}', "\x00"])
def test_a_damaged_manifest_is_written_anew(text: str, run: Path) -> None:
    (run / "manifest.json").write_text(text)
    assert resume(run) is not None
    assert json.loads((run / "manifest.json").read_text())["status"] == "complete"


def test_a_complete_run_says_so_and_is_left_alone(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    note(run, skipped={"a.png": "no picture"}, seconds=12.5)
    before = files(run)
    done = resume(run)
    assert done == Trained(run, "complete", 2, 2)
    assert capsys.readouterr().err == f"{run}: the run is complete (step 2 of 2); nothing to do\n"
    assert files(run) == before
    note(run, status="running")  # killed between its last checkpoint and the word in the manifest
    damage(run, put("skipped", value={"a.png": "no picture"}))
    assert resume(run) == done
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["skipped"]) == ("complete", {"a.png": "no picture"})


@pytest.mark.parametrize("error", [RuntimeError("of torch"), ValueError("odd"), KeyboardInterrupt(), SystemExit(143)])
def test_a_run_that_fails_after_it_was_begun_says_so(
    error: BaseException, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "train_step", broken)
    with pytest.raises(type(error)):
        resume(run)
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["step"]) == ("failed", 1)
    assert type(error).__name__ in manifest["reason"]
