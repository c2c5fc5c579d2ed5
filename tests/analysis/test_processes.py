"""Processes that share a measurement stop together, with one verdict, and never wait for one that has failed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError

ROOT = Path(__file__).parents[2]
MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"

VERDICTS = """
import json, sys, time
from pathlib import Path
from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError

def ends(work):
    processes = Processes.join()
    started = time.monotonic()
    try:
        with processes.together():
            work(processes)
        return "nothing"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        processes.leave()
        assert time.monotonic() - started < 30, "waited for a process that had failed"

def second_refuses(processes):
    if processes.rank == 1:
        raise InputError("refused by the second")

def both_refuse(processes):
    raise InputError(f"refused by {processes.rank}")

def second_breaks(processes):
    1 / (1 - processes.rank)

def second_refuses_while_the_first_works(processes):
    second_refuses(processes)
    while True:
        processes.stop_with_others()
        time.sleep(0.01)

found = {work.__name__: ends(work) for work in (second_refuses, both_refuse, second_breaks,
         second_refuses_while_the_first_works, lambda processes: None)}
import os
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_come_to_one_verdict(tmp_path: Path) -> None:
    script = tmp_path / "verdicts.py"
    script.write_text(VERDICTS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=300, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    for name, message in {
        "second_refuses": "InputError: refused by the second",
        "both_refuse": "InputError: refused by 0",
        "second_refuses_while_the_first_works": "InputError: refused by the second",
        "<lambda>": "nothing",
    }.items():
        assert first[name] == second[name] == message
    assert second["second_breaks"] == "ZeroDivisionError: division by zero"
    assert first["second_breaks"].startswith("OtherProcessError: another process of this run failed (ZeroDivision")


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "message"),
    [("both", "none of the 2 pictures is readable"), ("second", "does not exist"), ("out", "is a file")],
)
def test_an_error_in_one_process_ends_both_with_one_line(tmp_path: Path, broken: str, message: str) -> None:
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        if broken != "second" or place.name == "first":
            (place / "pictures").mkdir(parents=True)
            for name in ("a.png", "b.png"):
                (place / "pictures" / name).write_bytes(b"broken")
        place.mkdir(exist_ok=True)
    if broken == "out":
        (places[0] / "out").write_text("a file")
    ended = two(["measure", MODEL, "--data", "folder:pictures", "--layers", "last", "--out", "out"], places)
    assert [status for status, _ in ended] == [2, 2]
    assert [text.count("error: ") for _, text in ended] == [1, 0]
    assert message in ended[0][1]
    assert "Traceback" not in ended[0][1] + ended[1][1]


def test_processes_that_do_not_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="unset WORLD_SIZE") as error:
        Processes.join()
    assert "\n" not in str(error.value)


def test_a_single_process_keeps_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError), Processes().together():
        raise ZeroDivisionError
