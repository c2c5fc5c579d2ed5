"""The watch names planted collapses, and says nothing of runs that learn."""

import math
from typing import Any

from diffusionlens.training.monitoring.watch import CollapseWatch

K = 512
LN_K = math.log(K)


def lines(values: list[tuple[float, float, float]], every: int = 10) -> list[dict[str, Any]]:
    """Log lines from (loss, sample_entropy, teacher_entropy)."""
    return [
        {"step": every * (place + 1), "loss": loss, "sample_entropy": one, "teacher_entropy": mean}
        for place, (loss, one, mean) in enumerate(values)
    ]


def warnings(values: list[tuple[float, float, float]], total: int = 400) -> list[tuple[int, str]]:
    watch = CollapseWatch(K, total)
    said = [(line["step"], watch.see(line)) for line in lines(values)]
    return [(step, text) for step, text in said if text]


def test_a_run_that_learns_is_left_alone() -> None:
    """The course of a real run: uniform at first, then the gap opens."""
    course = [(LN_K, LN_K, LN_K)] * 8 + [(6 - 0.12 * i, 5 - 0.12 * i, 6.1 - 0.06 * i) for i in range(32)]
    assert warnings(course) == []


def test_a_loss_that_stays_at_ln_k() -> None:
    said = warnings([(LN_K + 0.02, 6.2, LN_K)] * 40)
    assert len(said) == 1  # once
    assert said[0][0] == 140  # the fifth line that is judged
    assert "outputs are uniform" in said[0][1]
    assert "6.24" in said[0][1]


def test_a_constant_output() -> None:
    said = warnings([(LN_K, LN_K, LN_K)] * 9 + [(0.05, 0.02, 0.03)] * 31)
    assert [step for step, _ in said] == [140]
    assert "every picture gets the same answer" in said[0][1]


def test_a_falling_loss_without_a_gap() -> None:
    said = warnings([(6 - 0.1 * i, 5.5 - 0.1 * i, 6.1 - 0.1 * i) for i in range(40)])
    assert len(said) == 1
    assert "nothing learned yet" in said[0][1]
    assert "0.10 nats" in said[0][1]


def test_a_relapse_is_said_again() -> None:
    good, bad = (3.0, 2.0, 4.0), (LN_K, 6.2, LN_K)
    said = warnings([bad] * 15 + [good] + [bad] * 5)
    assert [step for step, _ in said] == [140, 210]


def test_a_long_run_gets_more_patience() -> None:
    assert CollapseWatch(65536, 250_200).patience == 5000
    assert CollapseWatch(K, 400).patience == 100
