"""What CLS adds is told in the unit of its task, and no stronger than seeds, pictures and controls allow."""

import pandas as pd
import pytest

from diffusionlens.pages.findings import findings
from diffusionlens.results import Row, to_frame


def told(task: str, metric: str, gain: tuple[float, float, float], n: int = 3, control: float | None = None) -> str:
    low, high = gain[1:] if n > 1 else (None, None)
    rows = [Row(task, metric, 20.0, 40, 12, token=token, low=15.0, high=25.0) for token in ("patch", "cls+patch")]
    rows.append(Row("complementarity", "gain", gain[0], n, 12, token="cls+patch", low=low, high=high))
    rows.append(Row("complementarity", "gain_pictures", gain[0], 40, 12, token="cls+patch", low=gain[1], high=gain[2]))
    if control is not None:
        bounds = {"low": control - 0.01, "high": control + 0.01}
        rows.append(Row("complementarity", "gain", control, n, 12, token="mean+patch", **bounds))
    frame: pd.DataFrame = to_frame(rows, "m", "d")
    (text,) = (found.text for found in findings(frame, ["m"], []) if "CLS adds" in found.text)
    return text


@pytest.mark.parametrize(
    ("task", "metric", "unit"),
    [
        ("segmentation", "miou", "points of mIoU"),
        ("classification", "linear_top1", "points of accuracy"),
        ("depth", "rmse", "m (of lower RMSE)"),
    ],
)
def test_the_unit(task: str, metric: str, unit: str) -> None:
    text = told(task, metric, (0.5, 0.4, 0.6), control=0.1)
    assert text.startswith(
        f"In layer 12, CLS adds 0.500 (0.400 to 0.600) {unit} to the patches (interval over 3 trainings)"
    )
    assert text.endswith("controls: 0.100 for mean+patch.")


@pytest.mark.parametrize(
    ("gain", "n", "control", "end"),
    [
        ((0.5, -0.1, 1.1), 3, 0.1, "over trainings and over pictures together, that can't be told from nothing."),
        ((0.5, 0.4, 0.6), 3, None, "no control was asked for."),
        ((0.5, 0.4, 0.6), 3, 0.45, "controls: 0.450 for mean+patch, which can't all be told from it."),
        ((0.5, 0.4, 0.6), 3, 0.9, "not what CLS knows, but what stands there at all, makes the score."),
        ((0.5, 0.4, 0.6), 1, None, "whether another training says the same can't be told (--seeds)."),
    ],
)
def test_no_more_than_can_be_told(gain: tuple[float, float, float], n: int, control: float | None, end: str) -> None:
    assert told("segmentation", "miou", gain, n, control).endswith(end)
