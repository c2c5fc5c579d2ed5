"""Commands run by several processes, as torchrun starts them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def two(arguments: list[str], places: list[Path]) -> list[tuple[int, str]]:
    """Exit status and standard error of two processes of one run, the second started in another directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "diffusionlens", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=place,
            env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
        )
        for rank, place in enumerate(places)
    ]
    try:
        return [(one.wait(300), one.communicate()[1]) for one in running]
    finally:
        for one in running:
            one.kill()
