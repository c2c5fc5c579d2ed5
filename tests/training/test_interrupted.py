"""Runs that are killed, stopped, or share their batches: nothing is lost and nothing changes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diffusionlens.training.monitoring.log import read_log
from diffusionlens.training.train import train
from tests.training.tiny import DATA, ROOT, largest_difference, tiny, weights, without_key_biases

RECIPE = "tiny_scenes_entmax15"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

# As the command, but the process kills itself, with the signal that can't be caught, in the middle of step 5.
_KILLED = """
import os, signal, sys
from diffusionlens.training import loop
step, count = loop.train_step, 0
def killed(*arguments, **options):
    global count
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*arguments, **options)
loop.train_step = killed
from diffusionlens.cli import main
main()
"""

# As the command, but the pictures of the second process turn to NaN in step 3.
_BROKEN = """
import os
from diffusionlens.training import loop
step, count = loop.train_step, 0
def broken(learner, views, *arguments, **options):
    global count
    count += 1
    if count == 3 and os.environ["RANK"] == "1":
        views[0][0] = float("nan")
    return step(learner, views, *arguments, **options)
loop.train_step = broken
from diffusionlens.cli import main
main()
"""


def command(out: Path, *settings: str) -> list[str]:
    flags = [flag for setting in tiny(*settings) for flag in ("--set", setting)]
    return ["train", RECIPE, "--data", DATA, "--out", str(out), *flags]


def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=ENVIRONMENT, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def two_ranks(script: Path | None, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    what = ["-m", "diffusionlens"] if script is None else [str(script)]
    return call("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *what, *arguments, code=code)


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_log(run / "log.jsonl") if "loss" in line]


def in_process(out: Path, *settings: str, resume: bool = False) -> Path:
    train(RECIPE, DATA, out, settings=tiny(*settings), resume=resume)
    return out


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Stochastic depth is on, so that the random numbers inside the network must go on as well."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    call("-m", "diffusionlens", *command(straight))  # a process like the others: sums depend on the number of threads
    call("-c", _KILLED, *command(killed), code=-signal.SIGKILL)
    assert [step for step, _ in losses(killed)] == [1, 2, 3, 4]  # step 4 is done and not on the disk
    assert int(torch.load(killed / "checkpoints" / "last.pt", weights_only=True)["step"]) == 3
    call("-m", "diffusionlens", *command(killed), "--resume")
    assert largest_difference(weights(straight), weights(killed)) == 0
    assert losses(killed) == losses(straight)
    names = sorted(path.name for path in straight.rglob("*") if path.is_file())
    assert sorted(path.name for path in killed.rglob("*") if path.is_file()) == names


@pytest.mark.slow
def test_a_stopped_run_writes_a_checkpoint_and_leaves_with_0(tmp_path: Path) -> None:
    """SIGTERM to the process and, as cluster managers do, to its workers too."""
    out = tmp_path / "run"
    settings = ["length=2000 steps", "run.workers=1", "checkpoint.save=2000 steps", "checkpoint.every=2000 steps"]
    process = subprocess.Popen(
        [sys.executable, "-m", "diffusionlens", *command(out, *settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not ((out / "log.jsonl").exists() and len(losses(out)) > 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        printed, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    step = int(torch.load(out / "checkpoints" / "last.pt", weights_only=True)["step"])
    assert 3 <= step == losses(out)[-1][0] < 2000
    assert printed == f"stopped at step {step} of 2000, nothing lost; go on with --resume: {out}\n"


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    """The batch is the same for any number of ranks, and their number may change when a run is resumed."""
    settings = ["model.drop_path=0.0"]  # what is random in the network is drawn by each rank
    one = in_process(tmp_path / "one", *settings)
    two_ranks(None, *command(tmp_path / "two", *settings))
    script = tmp_path / "killed.py"
    script.write_text(_KILLED)
    two_ranks(script, *command(tmp_path / "half", *settings), code=1)  # three steps by two ranks, the rest by one
    in_process(tmp_path / "half", *settings, resume=True)
    alone = without_key_biases(weights(one))
    for name in ("two", "half"):
        shared = without_key_biases(weights(tmp_path / name))
        assert largest_difference(alone, shared, "student", "teacher", "loss") < 1e-6, name
    start = load_file(one / "teacher" / "epoch_0000.safetensors")
    assert all((alone[f".student.backbone.{key}"] - start[key]).abs().max() > 1e-4 for key in start if "weight" in key)


@pytest.mark.slow
def test_nan_on_one_rank_stops_both(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(_BROKEN)
    out = tmp_path / "run"
    done = two_ranks(script, *command(out, "checkpoint.save=1 steps"), code=1)  # torchrun's own status
    line = f"not finite (NaN or infinity) at step 3; the last good checkpoint is {out / 'checkpoints' / 'last.pt'} (step 2)"
    assert line in done.stderr
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["status"], line in manifest["reason"]) == ("failed", True)  # written by the rank that had no NaN
    assert all(torch.isfinite(value).all() for value in weights(out).values() if value.is_floating_point())
