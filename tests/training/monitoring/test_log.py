"""The log survives a crash in the middle of a line, and a resumed run goes on in it."""

import json
from pathlib import Path

import pytest
import torch

from diffusionlens.training.dino.timetable import Now
from diffusionlens.training.monitoring.log import JsonLines, ProgressLine, RunLog, read_log
from diffusionlens.training.monitoring.meter import Meter


def test_lines_behind_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RunLog([JsonLines(path, 0)])
    log.event("start", 0)
    for step in (1, 2, 3, 4):
        log.step({"step": step, "loss": float(step)})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 5, "lo')  # killed while writing
    again = RunLog([JsonLines(path, 2)])
    again.event("start", 2)
    again.step({"step": 3, "loss": 0.5})
    again.close()
    lines = read_log(path)
    assert [(line.get("event"), line["step"], line.get("loss")) for line in lines] == [
        ("start", 0, None),
        (None, 1, 1.0),
        (None, 2, 2.0),
        ("start", 2, None),
        (None, 3, 0.5),
    ]
    assert all(json.loads(text) for text in path.read_text().splitlines())


def test_a_line_holds_means_since_the_last_one() -> None:
    now = Now(lr=1e-3, weight_decay=0.04, momentum=0.99, teacher_temperature=0.04, last_layer_frozen=False)
    meter = Meter(batch_size=32)
    for loss in (3.0, 5.0):
        meter.waiting()
        meter.working()
        meter.add({"loss": torch.tensor(loss), "teacher_entropy": torch.tensor(6.0)})
    line = meter.line(2, 0.5, now)
    assert (line["loss"], line["teacher_entropy"], line["entropy_gap"], line["lr"]) == (4, 6, 2, 1e-3)
    meter.add({"loss": torch.tensor(1.0), "teacher_entropy": torch.tensor(6.0)})
    assert meter.line(3, 0.75, now)["loss"] == 1


def test_a_small_learning_rate_is_not_shown_as_0(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"step": 7, "epoch": 0.5, "loss": 3.0, "lr": 2.5e-7, "images_per_second": 9.0, "data_wait": 0.25}
    ProgressLine()(line, 7)
    assert "lr 2.50e-07  9 images/s  25 % waiting for data" in capsys.readouterr().err
