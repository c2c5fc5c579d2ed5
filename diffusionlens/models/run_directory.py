"""Where a training run keeps what: the names that training writes and everybody else reads.

    RUN/recipe.yaml                         the resolved recipe
    RUN/manifest.json                       what was run on which data, and how it ended
    RUN/log.jsonl                           one JSON object a line
    RUN/checkpoints/last.pt                 everything that resuming needs
    RUN/checkpoints/epoch_0010.pt           the same, kept
    RUN/teacher/last.safetensors            the teacher's backbone, for load_model
    RUN/teacher/epoch_0010.safetensors      the same, kept; epoch_0000 is the untrained network
    RUN/.lock                               empty; held by whoever trains here

A checkpoint inside an epoch is named by its step: step_00000400.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from diffusionlens.errors import InputError
from diffusionlens.spec import is_whole

RECIPE, MANIFEST, LOG, LOCK = "recipe.yaml", "manifest.json", "log.jsonl", ".lock"
CHECKPOINTS, TEACHER, LAST = "checkpoints", "teacher", "last"
_NAME = re.compile(r"^(?:epoch_(?P<epoch>\d+)|step_(?P<step>\d+))$")


@dataclass(frozen=True)
class RunWeights:
    """The teacher's weights at one moment: `path`, `epoch` (fractional inside one) and `step`, and `name` as in RUN@name."""

    path: Path
    epoch: float
    step: int

    @property
    def name(self) -> str:
        return f"epoch={int(self.epoch)}" if self.path.stem.startswith("epoch") else f"step={self.step}"


def checkpoint_name(step: int, steps_per_epoch: int) -> str:
    """The stem of the files of a numbered checkpoint."""
    epoch, rest = divmod(step, steps_per_epoch)
    return f"step_{step:08d}" if rest else f"epoch_{epoch:04d}"


def is_run(path: Path) -> bool:
    """Whether a folder is a training run."""
    try:
        return (path / RECIPE).is_file() and (path / TEACHER).is_dir()
    except OSError:  # a name too long for the system
        return False


def list_weights(run: Path) -> list[RunWeights]:
    """The numbered weights of a run's teacher, in the order of training.

    Raises:
        InputError: not a run, or its manifest is damaged.
    """
    return _numbered(run, (run / TEACHER).glob("*.safetensors"))


def _numbered(run: Path, paths: Iterable[Path]) -> list[RunWeights]:
    per_epoch = steps_per_epoch(run)
    found = []
    for path in paths:
        if (name := _NAME.match(path.stem)) and path.is_file():
            step = int(name["step"]) if name["step"] else int(name["epoch"]) * per_epoch
            found.append(RunWeights(path, step / per_epoch, step))
    return sorted(found, key=lambda weights: weights.step)


def find_weights(run: Path, at: str | None = None) -> Path:
    """The file of a run's teacher: its last one, or that of "epoch=10" or "step=400".

    Raises:
        InputError: not a run, one without weights yet, or without those (says which there are).
    """
    known = list_weights(run)
    if at is None:
        last = run / TEACHER / f"{LAST}.safetensors"
        if last.is_file():
            return last
        if known:
            return known[-1].path
        raise InputError(f"{run} holds no weights yet; its training has not written its first checkpoint")
    return _at(run, at, known, "weights").path


def find_checkpoint(run: Path, at: str | None = None) -> Path:
    """The file with both networks: the last one, or that of "epoch=10" or "step=400". A run keeps fewer of them than weights.

    Raises:
        InputError: not a run, or one that did not keep those (says which it has).
    """
    folder = run / CHECKPOINTS
    if at is not None:
        return _at(run, at, _numbered(run, folder.glob("*.pt")), "whole checkpoint").path
    last = folder / f"{LAST}.pt"
    if not last.is_file():
        raise InputError(f"{last} does not exist; a run whose checkpoints were removed has only its teacher")
    return last


def _at(run: Path, at: str, known: list[RunWeights], what: str) -> RunWeights:
    unit, _, number = at.partition("=")
    if unit not in ("epoch", "step") or not is_whole(number):
        raise InputError(f"'@{at}' behind {run}; wanted @epoch=N or @step=N")
    for weights in known:
        if (weights.step if unit == "step" else weights.epoch) == int(number):
            return weights
    names = [weights.name for weights in known]
    near = get_close_matches(at, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"{run} kept no {what} of {at}; it has {', '.join(names) or 'none yet'}{hint}")


def steps_per_epoch(run: Path) -> int:
    """As the run's manifest says.

    Raises:
        InputError: not a run, or its manifest is damaged.
    """
    try:
        steps = json.loads((run / MANIFEST).read_text(encoding="utf-8"))["steps_per_epoch"]
        if type(steps) is not int or steps < 1:
            raise ValueError
        return steps
    except FileNotFoundError:
        raise InputError(f"{run} is not a training run (no {MANIFEST}); wanted a folder that `train` made") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{run / MANIFEST} is damaged; `train --resume` writes it anew") from None
