"""The command in processes that can be killed at any moment, forked from one that has imported everything already."""

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import diffusionlens

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["matplotlib.pyplot", "tests.faults.forked"])
_IMPORTED = [getattr(diffusionlens, name) for name in diffusionlens.__all__]
"""Everything that the commands import when they are called, here before the fork."""


def _command(arguments: Sequence[str], log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    multiprocessing.set_start_method("fork", force=True)  # what the command finds when it is started by itself
    from diffusionlens.cli import main

    sys.argv = ["diffusionlens", *arguments]
    main()


def start(arguments: Sequence[str], log: Path) -> BaseProcess:
    """The command, running; what it prints goes to `log`."""
    process = _CONTEXT.Process(target=_command, args=(list(arguments), str(log)))
    process.start()
    return process


def finish(arguments: Sequence[str], log: Path, code: int = 0) -> float:
    """Runs the command to its end; the seconds that took."""
    began = time.monotonic()
    process = start(arguments, log)
    process.join(300)
    assert process.exitcode == code, log.read_text()
    return time.monotonic() - began


def kill_often(
    arguments: Callable[[], Sequence[str]],
    log: Path,
    seconds: float,
    seed: int,
    check: Callable[[bool], None],
    times: int = 20,
) -> None:
    """Starts the command and kills it after a random part of `seconds`, `times` times, with SIGKILL. After each, `check` looks at
    what is there; it is told whether the command came to its end before."""
    chance = random.Random(seed)
    killed = 0
    while killed < times:
        process = start(arguments(), log)
        process.join(chance.uniform(0, seconds))
        if process.is_alive():
            process.kill()
            process.join()
            killed += 1
            check(False)
        else:
            assert process.exitcode == 0, log.read_text()
            seconds *= 0.9
            check(True)
