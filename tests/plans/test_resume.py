"""A report that is killed in any of its jobs, or while its page is written, ends with the directory of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import diffusionlens
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.result_directories import contents

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

# As the command, but the process kills itself, with the signal that can't be caught: while part number KILL is written and not
# yet whole, or, beyond the last, in the middle of the page.
_KILLED = """
import os, signal, sys
import numpy as np
from diffusionlens.plans import parts, write
kill, count = int(os.environ["KILL"]), 0
savez = np.savez
def killed(*arguments, **options):
    global count
    count += 1
    if count == kill:
        os.kill(os.getpid(), signal.SIGKILL)
    return savez(*arguments, **options)
np.savez = killed
def page(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
if kill == 3:
    write.write_measured = page
from diffusionlens.cli import main
main()
"""


def call(code: int, kill: int | None, *arguments: str) -> str:
    script = ["-m", "diffusionlens"] if kill is None else ["-c", _KILLED]
    done = subprocess.run(
        [sys.executable, *script, *arguments], capture_output=True, text=True, timeout=600, check=False,
        env=ENVIRONMENT | {"KILL": str(kill)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.slow
def test_killed_anywhere(tmp_path: Path) -> None:
    models = [part for model in write_models(tmp_path) for part in ("--model", model)]
    asked = ["report", str(write_plan(tmp_path)), *models, "--data", DATA, "--train", TRAIN, "--size", "32"]
    for setting in ("pib.figures=[pca_maps]", "similarity.differences=false", "heads.figures=[]", "gain.figures=[]"):
        asked += ["--set", setting]  # drawing takes most of the time
    asked += ["--out"]
    call(0, None, *asked, str(tmp_path / "straight"))
    wanted = contents(tmp_path / "straight")
    killed = str(tmp_path / "killed")
    for kill, parts in ((1, 0), (2, 1)):
        call(-signal.SIGKILL, kill, *asked, killed)
        assert not Path(killed).exists()
        assert (
            sum(1 for path in (tmp_path / ".killed.parts").iterdir() if path.suffix != ".part" and path.name != ".lock")
            == parts
        )
    said = call(-signal.SIGKILL, 3, *asked, killed)  # in the middle of the page
    assert "pib + similarity + look (scenes): done before the interruption" in said
    said = call(0, None, *asked, killed)
    assert said.count("done before the interruption") == 2
    assert contents(Path(killed)) == wanted
    left = {path.name for path in tmp_path.iterdir()}
    assert not [name for name in left if name.startswith(".")], left


@pytest.mark.slow
def test_stale_parts_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted before the page, then asked again with one thing changed: that part is made anew."""
    plan, models = write_plan(tmp_path), write_models(tmp_path)
    worked: list[str] = []
    from diffusionlens.plans import run

    work = run._work
    monkeypatch.setattr(run, "_work", lambda job, *rest: (worked.append(job.kind), work(job, *rest))[1])
    monkeypatch.setattr("diffusionlens.api.reporting.write_report", lambda *_: (tmp_path, []))
    monkeypatch.setattr(run.Workshop, "close", lambda _: None)
    few = ["heads.seeds=1", "gain.seeds=1"]

    def ask(**change: object) -> list[str]:
        worked.clear()
        asked: dict[str, object] = {"data": DATA, "train": TRAIN, "size": "32", "settings": few} | change
        diffusionlens.report(plan, models[:1], out=tmp_path / "out", **asked)  # type: ignore[arg-type]
        return list(worked)

    assert ask() == ["measure", "probe"]
    assert ask() == []
    assert ask(settings=[*few, "heads.options.iterations=4", "gain.options.iterations=4"]) == ["probe"]
    assert ask(data="scenes:?n=9&seed=1&size=32") == ["measure", "probe"]
    assert ask(train="train=scenes:?n=11&size=32") == ["probe"]
    assert ask(seed=1) == ["measure", "probe"]
    assert ask() == []  # what had been made is still there
    before = (tmp_path / "one.safetensors").read_bytes()
    write_models(tmp_path)
    assert (tmp_path / "one.safetensors").read_bytes() == before
    (tmp_path / "one.safetensors").write_bytes((tmp_path / "two_b.safetensors").read_bytes())
    assert ask() == ["measure", "probe"]  # other weights under the same name
    for part in (tmp_path / ".out.parts").glob("*/part.json"):
        part.write_text("{")
    assert ask() == ["measure", "probe"]
    assert ask(resume=False) == ["measure", "probe"]
