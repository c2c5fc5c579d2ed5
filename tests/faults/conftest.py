"""A small disk of its own, in memory."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class Disk:
    """A file system of so many bytes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()

    def resize(self, size: int) -> None:
        self.leave()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("no disk can be mounted here")

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.place)], check=True)

    def leave(self) -> None:
        if os.path.ismount(self.place):
            subprocess.run(["umount", "-l", str(self.place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    try:
        made.resize(2**20)
        yield made
    finally:
        made.leave()
