"""The last layers of two models, picture by picture: what a table and the first sentences of a report say of them."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from diffusionlens.analysis.run import Measurement
from diffusionlens.comparison.paired import paired_differences
from diffusionlens.pages.comparison_findings import Shown, difference_sentence
from diffusionlens.pages.findings import Finding
from diffusionlens.results import JACKKNIFE


@dataclass(frozen=True)
class Score:
    """A number at each model's last layer: `token` "" takes the only one there is, "a | b" the first of those that is there."""

    analysis: str
    metric: str
    token: str
    title: str


HEADLINES = (
    Score("pib", "pib", "", "PiB (%)"),
    Score("diffusion", "leakage", "", "leakage (points)"),
    Score("diffusion", "spread", "all", "spread"),
    Score("similarity", "cls_patch_cos", "", "CLS-patch cosine"),
    Score("similarity", "lds", "", "locality (LDS)"),
    Score("sparsity", "effective_support", "patch>all", "effective support of attention"),
    Score("segmentation", "miou", "patch", "mIoU (%), patch"),
    Score("depth", "rmse", "cls+patch", "depth RMSE (m), cls+patch"),
    Score("classification", "linear_top1", "cls", "linear accuracy (%), cls"),
)
"""What a report's first sentences compare."""


def last_row(results: pd.DataFrame, model: str, score: Score) -> Any | None:
    """The model's number at its last measured layer, heads averaged; None where there is none."""
    rows = _of(results, model, score)
    rows = rows[rows["value"].notna()]
    if rows.empty:
        return None
    return next(rows[rows["layer"] == rows["layer"].max()].itertuples(index=False, name="Row"))


def difference(done: Measurement, baseline: str, model: str, score: Score, seed: int) -> Any | None:
    """Model minus baseline, each at its own last layer, over the pictures that both have; None where one has no number.

    The fields are those of a row of `comparison.paired`: without values of pictures no interval and no `n`.
    """
    ours, theirs = last_row(done.results, model, score), last_row(done.results, baseline, score)
    if ours is None or theirs is None:
        return None
    apart = float(ours.value) - float(theirs.value)
    fields = {
        "model": model, "analysis": score.analysis, "metric": score.metric, "token": score.token, "layer": ours.layer,
        "difference": apart, "low": np.nan, "high": np.nan, "n": pd.NA, "differing": pd.NA, "of_means": apart,
    }  # fmt: skip
    pictures = [_last_pictures(done.per_image, row, score) for row in (theirs, ours)]
    paired = paired_differences(pictures[0], pictures[1], seed)
    if len(paired):
        fields |= {name: paired[name].iloc[0] for name in ("difference", "low", "high", "n", "differing")}
    return SimpleNamespace(**fields)


def of_pictures(row: Any) -> bool:
    """Whether the difference is a mean of pictures that is not the difference of the two numbers (a ratio of sums as mIoU)."""
    return bool(pd.notna(row.n) and not np.isclose(row.difference, row.of_means, rtol=1e-3, atol=1e-4))


def sentence(row: Any, title: str, baseline: str, figure: str | None) -> Finding:
    """A difference in words, no stronger than its interval."""
    text = difference_sentence(Shown(row, title, of_pictures(row)), baseline)
    return Finding(text, str(row.model), rows=(row,), figure=figure)


def _of(frame: pd.DataFrame, model: str, score: Score) -> pd.DataFrame:
    chosen = (frame["model"] == model) & (frame["analysis"] == score.analysis) & (frame["metric"] == score.metric)
    rows = frame[chosen & frame["head"].isin(["", "mean"])]
    for token in filter(None, score.token.split(" | ")):
        if (named := rows[rows["token"] == token]).size:
            return named
    return rows.head(0) if score.token else rows


def _last_pictures(per_image: pd.DataFrame, row: Any, score: Score) -> pd.DataFrame:
    """Values of pictures behind `row`, as if of layer 0, so that models of different depth meet."""
    own = pd.concat([_of(per_image, row.model, replace(score, metric=score.metric + end)) for end in ("", JACKKNIFE)])
    return own[(own["layer"] == row.layer) & (own["token"] == row.token)].assign(layer=0)
