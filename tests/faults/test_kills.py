"""Twenty kills at random moments of every long command: what is on the disk is whole or absent, and the next run completes."""

from pathlib import Path

import pytest
from safetensors import safe_open

from diffusionlens.training.checkpoints.checkpoint import load_checkpoint
from diffusionlens.training.monitoring.log import read_log
from tests.faults.forked import finish, kill_often
from tests.plans.tiny import DATA, TRAIN, write_models, write_plan
from tests.result_directories import contents
from tests.training.tiny import largest_difference, tiny, weights

pytestmark = pytest.mark.slow

VARYING = "command|backbone_forwards"  # the cache may have been filled by a run that was killed later


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def results_are_whole_or_absent(tmp_path: Path, asked: list[str], log: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    killed.mkdir()
    for _ in range(2):  # the first is slower: compiled code comes from the disk, tokens into the cache
        seconds = finish([*asked, "--out", str(straight / "out")], log)
    wanted = contents(straight / "out", VARYING)

    def check(done: bool) -> None:
        left = set(hidden(killed)) - {".out.parts"}  # a report's finished sections, kept for the next run
        assert len(left) <= 1, left  # what the last one left, and nothing of those before
        if (killed / "out").exists():
            assert contents(killed / "out", VARYING) == wanted
        assert done is False or (killed / "out").exists()

    kill_often(lambda: [*asked, "--out", str(killed / "out")], log, seconds, 1, check)
    finish([*asked, "--out", str(killed / "out")], log)
    assert contents(killed / "out", VARYING) == wanted
    assert hidden(killed) == []


def test_measure(tmp_path: Path) -> None:
    model = write_models(tmp_path)[0]
    results_are_whole_or_absent(
        tmp_path, ["measure", model, "--data", DATA, "--size", "32", "--analyses", "pib,sparsity"], tmp_path / "log"
    )


def test_probe(tmp_path: Path) -> None:
    """All attempts share a cache of tokens."""
    model, cache = write_models(tmp_path)[0], tmp_path / "cache"
    asked = [
        "probe",
        "segmentation",
        model,
        "--data",
        DATA,
        "--train",
        TRAIN,
        "--size",
        "32",
        "--seeds",
        "2",
        "--layers",
        "last",
    ]
    asked += ["--set", "iterations=5", "--set", "points=16", "--cache", str(cache), "--save-heads"]
    results_are_whole_or_absent(tmp_path, asked, tmp_path / "log")
    assert len(list(cache.iterdir())) == 2  # test and train, and nothing half-filled


def test_report(tmp_path: Path) -> None:
    models = [part for model in write_models(tmp_path) for part in ("--model", model)]
    asked = ["report", str(write_plan(tmp_path)), *models, "--data", DATA, "--train", TRAIN, "--size", "32"]
    for setting in ("pib.figures=[pca_maps]", "similarity.differences=false", "heads.figures=[]", "gain.figures=[]"):
        asked += ["--set", setting]  # drawing takes most of the time
    results_are_whole_or_absent(tmp_path, asked, tmp_path / "log")


def test_train(tmp_path: Path) -> None:
    straight, killed, log = tmp_path / "straight", tmp_path / "killed", tmp_path / "log"
    asked = ["train", "tiny_scenes_entmax15", "--data", "scenes:?n=40&size=32"]
    for setting in tiny("length=40 steps", "checkpoint.every=10 steps"):
        asked += ["--set", setting]
    seconds = finish([*asked, "--out", str(straight)], log)
    wanted = weights(straight)
    names = sorted(str(path.relative_to(straight)) for path in straight.rglob("*") if path.is_file())

    def command() -> list[str]:
        resume = ["--resume"] if (killed / "checkpoints" / "last.pt").exists() else []
        return [*asked, "--out", str(killed), *resume]

    def check(done: bool) -> None:
        steps = []
        for path in killed.rglob("*.pt"):
            steps.append(load_checkpoint(path)["step"])
        for path in killed.rglob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                assert len(file.keys()) > 10
        if (killed / "log.jsonl").exists():
            logged = [line["step"] for line in read_log(killed / "log.jsonl") if "loss" in line]
            assert logged == sorted(set(logged))
        if done:
            assert largest_difference(weights(killed), wanted) == 0
            found = sorted(str(path.relative_to(killed)) for path in killed.rglob("*") if path.is_file())
            assert found == names
            killed.rename(tmp_path / f"done{len(list(tmp_path.iterdir()))}")  # and from the beginning again

    kill_often(command, log, seconds, 2, check)
    finish(command(), log)
    check(True)
