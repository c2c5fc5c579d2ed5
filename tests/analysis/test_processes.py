"""Processes that share a measurement stop together, with one verdict, and never wait for one that has failed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError
from tests.processes import environment, two

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from torchmetrics import Metric
from diffusionlens.analysis.processes import Processes
from diffusionlens.errors import InputError
from diffusionlens.shelf import Shelf, Storage

def ends(work):
    processes = Processes.join()
    started = time.monotonic()
    try:
        return work(processes)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        processes.leave()
        assert time.monotonic() - started < 30, "waited for what does not come"

def verdict(work):
    def of(processes):
        with processes.together():
            work(processes)
        return "nothing"
    return of

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

class Kept(Metric):  # what `merge` asks of a diagnostic
    full_state_update = False

    def __init__(self, rank, **shelves):
        super().__init__()
        self.storage = Storage()
        self.shelves = {name: Shelf(self.storage) for name in shelves}
        for name, rows in shelves.items():
            for row in rows:
                self.shelves[name].append(np.array([[row]], np.float32))
                self.shelves[name].settle()

    def update(self): pass
    def compute(self): pass

def of_the_second_alone(rank):
    return Kept(rank, index=[rank, 10 + rank], **({"late": [5, 6], "another": [7]} if rank else {}))

def of_the_first_alone(rank):
    return Kept(rank, index=[rank, 10 + rank], **({} if rank else {"early": [5, 6]}))

def that_cannot_be_read(rank):
    kept = Kept(rank, index=[1, 2, 3], other=[4])
    if rank:
        kept.storage._file.truncate(5)
    return kept

def of_another_width(rank):
    kept = Kept(rank, index=[1, 2])
    if rank:
        kept.shelves["index"] = Shelf()
        kept.shelves["index"].append(np.zeros((3, 7), np.float32))
    return kept

def merged(make):
    def of(processes):
        kept = make(processes.rank)
        processes.merge(kept)
        return {name: one.columns().ravel().tolist() for name, one in kept.shelves.items()}
    return of

verdicts = (second_refuses, both_refuse, second_breaks, second_refuses_while_the_first_works, lambda processes: None)
makers = (of_the_second_alone, of_the_first_alone, that_cannot_be_read, of_another_width)
found = {work.__name__: ends(verdict(work)) for work in verdicts} | {make.__name__: ends(merged(make)) for make in makers}
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw."""
    folder = tmp_path_factory.mktemp("two")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, timeout=300, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / rank).read_text()) for rank in "01"]


@pytest.mark.slow
def test_two_processes_come_to_one_verdict(found: list[dict[str, Any]]) -> None:
    first, second = found
    for name, message in {
        "second_refuses": "InputError: refused by the second",
        "both_refuse": "InputError: refused by 0",
        "second_refuses_while_the_first_works": "InputError: refused by the second",
        "<lambda>": "nothing",
    }.items():
        assert first[name] == second[name] == message
    assert second["second_breaks"] == "ZeroDivisionError: division by zero"
    assert first["second_breaks"].startswith("OtherProcessError: another process of this run failed (ZeroDivision")


@pytest.mark.slow
def test_shelves_come_together(found: list[dict[str, Any]]) -> None:
    """Also one that a single process has; and what can't be given or taken ends both processes."""
    first, second = found
    assert first["of_the_second_alone"] == {"index": [0, 10, 1, 11], "late": [5, 6], "another": [7]}
    assert first["of_the_first_alone"] == {"index": [0, 10, 1, 11], "early": [5, 6]}
    assert first["that_cannot_be_read"] == second["that_cannot_be_read"]
    assert "could not be read back" in first["that_cannot_be_read"]
    assert first["of_another_width"].startswith("ValueError: rows (3, 7)")
    assert second["of_another_width"].startswith("OtherProcessError: another process of this run failed (ValueError")


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
