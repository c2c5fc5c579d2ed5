"""What a killed run left is told from what a living one writes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diffusionlens.locks import BusyError, lock, sweep, temporary_directory, temporary_prefix

# Makes a temporary directory with something in it, forks a child that lives on, says so, and waits for its end.
_WORKING = """
import os, sys, time
from pathlib import Path
from diffusionlens.locks import temporary_directory
with temporary_directory(Path(sys.argv[1])) as place:
    (place / "tokens").write_text("x")
    if os.fork() == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print(place, flush=True)
    time.sleep(60)
"""


def test_a_directory_is_swept_when_its_run_is_dead_and_not_before(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKING, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    place = Path(process.stdout.readline().strip())
    try:
        with temporary_directory(tmp_path) as other:
            assert place.is_dir()
            assert other.is_dir()
        assert not other.exists()
        process.kill()  # its child, which had the lock's file open when it was forked, lives on
        process.wait()
        with temporary_directory(tmp_path) as other:
            assert not place.exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_only_what_begins_so_and_is_a_directory_is_swept(tmp_path: Path) -> None:
    prefix = temporary_prefix("")
    (tmp_path / f"{prefix}note").write_text("precious")
    (tmp_path / "kept").mkdir()
    (tmp_path / f"{prefix}link").symlink_to(tmp_path / "kept")
    (tmp_path / f"{temporary_prefix('tokens-')}x").mkdir()
    (tmp_path / f"{prefix}left").mkdir()
    sweep(tmp_path, prefix)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{prefix}note", "kept", f"{prefix}link", f"{temporary_prefix('tokens-')}x"}
    sweep(tmp_path / "nowhere", prefix)


def test_one_holds_it(tmp_path: Path) -> None:
    held = lock(tmp_path / "file")
    assert held.held
    with pytest.raises(BusyError):
        lock(tmp_path / "file")
    held.release()
    held.release()
    lock(tmp_path / "file").release()
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "nowhere" / "file")


def test_what_was_given_another_name_stays(tmp_path: Path) -> None:
    with temporary_directory(tmp_path) as place:
        place.rename(tmp_path / "result")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
