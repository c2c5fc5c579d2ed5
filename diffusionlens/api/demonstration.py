"""Everything that the program does, on built-in pictures: two models trained, measured side by side, and tracked."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffusionlens.api.measuring import Measured, measure
from diffusionlens.api.tracking import Tracked, track
from diffusionlens.errors import InputError
from diffusionlens.models.run_directory import MANIFEST, is_run, list_weights
from diffusionlens.spec import given_path

ATTENTIONS = ("softmax", "entmax15")
TRAINING_DATA = "train=scenes:?n=8000&size=64"
HELD_OUT_DATA = "held-out=scenes:?n=200&seed=1&size=64"
_SIZE = "64"
_TAIL = 3  # last lines of a training that failed, which say why


@dataclass(frozen=True)
class Demonstration:
    """What the demo left: the runs, and the measurement and the track with their pages."""

    runs: dict[str, Path]
    measured: Measured
    tracked: Tracked


def demo(
    out: Path | str,
    *,
    settings: Sequence[str] = (),
    images: int | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Demonstration:
    """Trains a softmax and an entmax-1.5 model on built-in scenes, at the same time, each on one thread; measures both on other
    scenes, each beside its untrained beginning; and tracks both over training. Some minutes on two cores.

    Leaves `out`/runs/{softmax,entmax15}, `out`/measure and `out`/track. Said again it goes on where it was interrupted.

    Args:
        out: a directory to make, or one that an earlier demo began.
        settings: of the recipe, as for `train`.
        images: at most so many held-out pictures.

    Raises:
        InputError: `out` can't be made, or a training failed.
    """
    place = given_path("--out", out, "a directory to make")
    _check(place)
    runs = {attention: place / "runs" / attention for attention in ATTENTIONS}
    _train_together(runs, settings)
    models = []
    for name, run in runs.items():  # each beside its own beginning: the attention alone makes a difference, too
        models += [f"{name}-untrained={list_weights(run)[0].path}", f"{name}={run}"]
    measured = measure(
        models,
        HELD_OUT_DATA,
        place / "measure",
        analyses="standard,diffusion",
        images=images,
        size=_SIZE,
        progress=progress,
    )
    named = [f"{name}={run}" for name, run in runs.items()]
    tracked = track(named, HELD_OUT_DATA, place / "track", images=images, size=_SIZE, progress=progress)
    assert measured is not None
    assert tracked is not None
    return Demonstration(runs, measured, tracked)


def _check(place: Path) -> None:
    if place.exists() and not place.is_dir():
        raise InputError(f"--out {place} is a file; wanted a directory to make")
    strange = {path.name for path in place.iterdir()} - {"runs", "measure", "track"} if place.is_dir() else set()
    if strange:
        raise InputError(
            f"--out {place} holds {min(strange)}, which no demo made; choose another directory, which will be made"
        )
    try:
        (place / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {place} can't be made ({error.strerror}); choose another directory") from None


def _train_together(runs: dict[str, Path], settings: Sequence[str]) -> None:
    """Both trainings as processes of their own, one thread each; what they say comes through under their name.

    Raises:
        InputError: one of them failed (the other one is stopped, with a checkpoint).
    """
    children = {name: _start(name, run, settings) for name, run in runs.items()}
    tails: dict[str, list[str]] = {name: [] for name in runs}
    speakers = [
        threading.Thread(target=_forward, args=(name, child, tails[name]), daemon=True)
        for name, child in children.items()
    ]
    for speaker in speakers:
        speaker.start()
    try:
        for name, child in children.items():
            if child.wait() != 0:
                reason = " / ".join(tails[name][-_TAIL:]) or f"exit status {child.returncode}"
                raise InputError(f"the training of the {name} model failed: {reason.removeprefix('error: ')}")
            status = json.loads((runs[name] / MANIFEST).read_text(encoding="utf-8"))["status"]
            if status != "complete":
                raise InputError(f"the training of the {name} model is {status}; say the same again to go on with it")
    finally:
        for child in children.values():
            if child.poll() is None:
                child.terminate()  # writes a checkpoint, so that the demo goes on from there next time
        for child in children.values():
            child.wait()
        for speaker in speakers:
            speaker.join()


def _start(name: str, run: Path, settings: Sequence[str]) -> "subprocess.Popen[str]":
    given = [sys.executable, "-m", "diffusionlens", "train"]
    recipe = str(run / "recipe.yaml") if is_run(run) else f"tiny_scenes_{name}"
    given += [recipe, "--data", TRAINING_DATA, "--out", str(run)] + ["--resume"] * is_run(run)
    if not is_run(run):
        given += [part for setting in settings for part in ("--set", setting)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="backslashreplace", env=environment
    )


def _forward(name: str, child: "subprocess.Popen[str]", tail: list[str]) -> None:
    assert child.stderr is not None
    with child.stderr as lines:
        for line in lines:
            tail.append(line.rstrip())
            print(f"{name}: {line.rstrip()}", file=sys.stderr, flush=True)
