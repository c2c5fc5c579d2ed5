"""From sums over pictures to rows: scores with intervals over pictures, gains with intervals over seeds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from diffusionlens.analysis.intervals import Floats, wilson
from diffusionlens.analysis.probes.heads.training import Scored
from diffusionlens.results import Row

_RESAMPLES = 1000
_CHUNK = 100


@dataclass(frozen=True)
class LayerScores:
    """What one layer's heads did on the test pictures. `sums` [S,P,K,F]: seeds, pictures, kinds, features of the task;
    `suffix` is added to every kind's name in column token (as " k=20")."""

    layer: int
    kinds: tuple[str, ...]
    sums: Floats
    suffix: str = ""


def score_rows(task: Scored, found: LayerScores, seed: int) -> list[Row]:
    """Every metric of every kind, the mean over seeds of the score of all pictures; Wilson's interval for the share of pictures
    that are right, and otherwise the percentile bootstrap over pictures, widened to the value itself where it lies outside.

    All kinds, seeds and metrics share their resamples, so that differences keep their pairing.
    """
    counted = _counted(task, found)
    if not counted.any():
        return []
    sums = found.sums[:, counted]
    n = int(counted.sum())
    values = {metric: value.mean(0) for metric, value in task.scores(sums.sum(1)).items()}
    low, high = _proportions(values, n) if task.right_or_wrong else _bounds(task, sums, values, seed)
    return [
        Row(
            task.name, metric, float(values[metric][place]), n, found.layer, token=kind + found.suffix,
            low=_or_none(low[metric][place]), high=_or_none(high[metric][place]),
        )
        for metric in task.metrics
        for place, kind in enumerate(found.kinds)
    ]  # fmt: skip


def gain_rows(task: Scored, found: LayerScores, seed: int) -> list[Row]:
    """What CLS, and each control, adds to the patches; positive is better.

    `gain` has Student's interval over seeds (n = seeds), `gain_pictures` the same value with the paired bootstrap over the
    test pictures (n = pictures).
    """
    counted = _counted(task, found)
    if "patch" not in found.kinds or not counted.any():
        return []
    sums, pictures, base = found.sums[:, counted], int(counted.sum()), found.kinds.index("patch")
    sign = 1 if task.higher_is_better else -1
    points = sign * task.scores(sums.sum(1))[task.primary]
    resampled = sign * _resampled(task, sums, seed)[task.primary]
    rows = []
    for place, kind in enumerate(found.kinds):
        if "+" not in kind:
            continue
        each = points[:, place] - points[:, base]
        low, high = student(each)
        value = float(each.mean())
        rows.append(Row("complementarity", "gain", value, len(each), found.layer, token=kind, low=low, high=high))
        edges = _percentiles(resampled[:, place] - resampled[:, base]) if pictures > 1 else (np.nan, np.nan)
        lower, upper = (_or_none(edge) for edge in edges)
        rows.append(
            Row("complementarity", "gain_pictures", value, pictures, found.layer, token=kind, low=lower, high=upper)
        )
    return rows


def jackknife(task: Scored, sums: Floats) -> dict[str, Floats]:
    """What every picture contributes to the task's ratios of sums: {metric: [P,K]}, the mean over seeds.

    Jackknife pseudo-values, shifted so that their mean is the score of all pictures: score - (P - 1) (score without the
    picture - the mean of these). Their differences between two models therefore average to the difference of the two scores,
    and vary from picture to picture as that difference does (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    chapter 11). Nothing for a single picture.

    Args:
        sums: [S,P,K,F], of pictures that have something to score.
    """
    pictures = sums.shape[1]
    if not task.ratios or pictures < 2:
        return {}
    total = sums.sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole, without = task.scores(total), task.scores(total - sums, total)
    found = {}
    for metric in task.ratios:
        apart = without[metric] - without[metric].mean(1, keepdims=True)
        found[metric] = (whole[metric] - (pictures - 1) * apart).mean(0)
    return found


def student(values: Floats) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None, None
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def _counted(task: Scored, found: LayerScores) -> NDArray[np.bool_]:
    """Pictures that have something to score."""
    return np.asarray(task.counts(found.sums).all((0, 2)))


def _resampled(task: Scored, sums: Floats, seed: int) -> dict[str, Floats]:
    """Every metric [resamples,K], the mean over seeds, of pictures drawn anew."""
    seeds, pictures, kinds, features = sums.shape
    rng = np.random.default_rng(seed)
    parts: dict[str, list[Floats]] = {metric: [] for metric in task.metrics}
    flat, whole = sums.reshape(seeds, pictures, -1), sums.sum(1)[:, None]
    for _ in range(0, _RESAMPLES, _CHUNK):
        weights = rng.multinomial(pictures, np.full(pictures, 1 / pictures), size=_CHUNK).astype(np.float64)
        drawn = np.stack([weights @ own for own in flat]).reshape(seeds, _CHUNK, kinds, features)
        for metric, value in task.scores(drawn, whole).items():
            parts[metric].append(value.mean(0))
    return {metric: np.concatenate(values) for metric, values in parts.items()}


def _proportions(values: dict[str, Floats], n: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    edges = {metric: np.array([wilson(value / 100 * n, n) for value in own]).T for metric, own in values.items()}
    return {metric: 100 * own[0] for metric, own in edges.items()}, {
        metric: 100 * own[1] for metric, own in edges.items()
    }


def _bounds(
    task: Scored, sums: Floats, values: dict[str, Floats], seed: int
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    if sums.shape[1] < 2:
        nothing = {metric: np.full(sums.shape[2], np.nan) for metric in task.metrics}
        return nothing, nothing
    low, high = {}, {}
    for metric, resampled in _resampled(task, sums, seed).items():
        lower, upper = _percentiles(resampled)
        low[metric], high[metric] = np.fmin(lower, values[metric]), np.fmax(upper, values[metric])
    return low, high


def _percentiles(values: Floats) -> tuple[Floats, Floats]:
    low, high = np.nanpercentile(values, [2.5, 97.5], axis=0)
    return low, high


def _or_none(value: Floats | float) -> float | None:
    return None if np.isnan(value) else float(value)
