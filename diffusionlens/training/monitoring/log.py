"""The log of a run: JSON lines in RUN/log.jsonl, and the same to TensorBoard and Weights & Biases for those who want it."""

import json
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from diffusionlens.errors import InputError
from diffusionlens.training.checkpoints.checkpoint import write_whole
from diffusionlens.training.recipe import Recipe


def check_extras(recipe: Recipe) -> None:
    """Raises:
    InputError: the recipe logs to something whose package is not installed.
    """
    for asked, package in ((recipe.run.tensorboard, "tensorboard"), (recipe.run.wandb is not None, "wandb")):
        if asked and find_spec(package) is None:
            raise InputError(
                f"run.{package} needs the package {package}: pip install 'diffusionlens[{package}]', or leave it out"
            )


class Sink(Protocol):
    """Somewhere that the numbers of a step go."""

    def write(self, line: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """RUN/log.jsonl, one object a line, each written at once."""

    def __init__(self, path: Path, from_step: int) -> None:
        """Goes on in a log that is there, without its lines behind `from_step`: those steps are made again."""
        self.path = path
        if path.exists():
            kept = [line for line in read_log(path) if line["step"] <= from_step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            write_whole(path, lambda file: file.write(text.encode()))
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """RUN/tensorboard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of the same name in a project of Weights & Biases."""

    def __init__(self, project: str, folder: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(project=project, name=folder.name, id=folder.name, resume="allow", config=dict(recipe))

    def write(self, line: Mapping[str, Any]) -> None:
        self._run.log({name: value for name, value in line.items() if name != "step"}, step=line["step"])

    def close(self) -> None:
        self._run.finish()


class RunLog:
    """Everything a run says. Lines with `event` (start, checkpoint, warning, skipped, end) go to the file alone."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks

    def step(self, line: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            self._try(sink, line)

    def event(self, event: str, step: int, **facts: Any) -> None:
        line = {"event": event, "step": step, "time": round(time.time(), 3), **facts}
        for sink in self._sinks:
            if isinstance(sink, JsonLines):
                self._try(sink, line)

    def _try(self, sink: Sink, line: Mapping[str, Any]) -> None:
        try:
            sink.write(line)
        except OSError as error:  # a full disk: training goes on, its checkpoints say more
            print(f"warning: a line of the log could not be written ({error.strerror})", file=sys.stderr, flush=True)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, in order; one that a crash or a full disk cut short is left out.

    Raises:
        InputError: it can't be read, or a line was written by something else.
    """
    advice = "move it away, and the run goes on with a new one"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the log {path} can't be read ({error.strerror}); {advice}") from None
    lines = []
    for number, raw in enumerate(content.splitlines(), start=1):
        try:
            line = json.loads(raw.decode("utf-8"))
        except (UnicodeDecodeError, RecursionError):
            line = None
        except ValueError:
            continue
        if not isinstance(line, dict) or type(step := line.get("step")) is not int or step < 0:
            raise InputError(
                f"the log {path} is damaged in line {number}; wanted UTF-8 and a JSON object with a step of the run: {advice}"
            )
        lines.append(line)
    return lines


class ProgressLine:
    """The state of a run in one line on standard error: rewritten on a terminal, every ten seconds elsewhere."""

    _EVERY = 10.0

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = 0.0

    def __call__(self, line: Mapping[str, Any], total: int) -> None:
        now = time.monotonic()
        done = line["step"] >= total
        if not self._terminal and not done and now - self._last < self._EVERY:
            return
        self._last = now
        text = (
            f"step {line['step']}/{total}  epoch {line['epoch']:.2f}  loss {line['loss']:.3f}  lr {line['lr']:.2e}  "
            f"{line['images_per_second']:.0f} images/s  {100 * line['data_wait']:.0f} % waiting for data"
        )
        end = "\n" if done or not self._terminal else "\r"
        print(text.ljust(100) if self._terminal else text, end=end, file=sys.stderr, flush=True)
