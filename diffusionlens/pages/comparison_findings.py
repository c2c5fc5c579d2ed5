"""What a comparison lets one say: no difference is claimed whose interval holds zero."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from diffusionlens.comparison.paired import Comparison
from diffusionlens.pages.diffusion_findings import EMPTY_BOXES, UNCUT
from diffusionlens.pages.findings import Finding, untrained_warning
from diffusionlens.pages.numbers import short
from diffusionlens.pages.tables import KEY_METRICS

_CALM = {"pib_chance", "pib_center", "leakage_chance"}
"""Properties of the pictures: in the table, but no news."""

FEWEST_DIFFERING = 6
"""Fewer differing pictures than this never make a difference: even if all go one way, a sign test gives 2 / 2^5 > 0.05, where a
bootstrap of a handful of hits would already keep clear of zero."""


@dataclass(frozen=True)
class Shown:
    """A row of the differences with its heading; `of_pictures`: it is not the difference of the two numbers of results.csv."""

    row: Any
    heading: str
    of_pictures: bool


def shown_differences(differences: pd.DataFrame) -> Iterator[Shown]:
    """The key metrics of every analysis at the last layer in common, heads averaged; of an analysis unknown here, all."""
    for analysis in dict.fromkeys(differences["analysis"]):
        rows = differences[(differences["analysis"] == analysis) & differences["head"].isin(["", "mean"])]
        for model in dict.fromkeys(rows["model"]):
            own = rows[rows["model"] == model]
            last = own[own["layer"] == own["layer"].max()] if own["layer"].notna().any() else own
            for heading, row in _key_rows(str(analysis), last):
                apart = pd.notna(row.n) and not np.isclose(row.difference, row.of_means, rtol=1e-3, atol=1e-4)
                yield Shown(row, heading, bool(apart))


def _key_rows(analysis: str, last: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    if analysis not in KEY_METRICS:
        for row in last.itertuples(index=False, name="Row"):
            yield f"{analysis}: {row.metric}" + (f" ({row.token!s})" if row.token else ""), row
        return
    for metric, token, heading in KEY_METRICS[analysis]:
        chosen = last[(last["metric"] == metric) & ((last["token"] == token) if token is not None else True)]
        for row in chosen.head(1).itertuples(index=False, name="Row"):
            yield heading, row


def comparison_findings(comparison: Comparison) -> list[Finding]:
    """Warnings, then a sentence for every key metric of every model."""
    untrained = [entry.name for entry in comparison.entries if entry.facts.get("untrained")]
    found = [untrained_warning(untrained)] if untrained else []
    found += [Finding(text, warning=True) for text in comparison.warnings]
    baseline = comparison.baseline.name
    for shown in shown_differences(comparison.differences):
        if shown.row.metric not in _CALM:
            text = _no_score(comparison, shown) or difference_sentence(shown, baseline)
            found.append(Finding(text, str(shown.row.model), rows=(shown.row,), figure="differences_by_layer"))
    return found


def _no_score(comparison: Comparison, shown: Shown) -> str | None:
    """What is said in the place of a difference of CorLoc when one of both models has no box to speak of in many pictures."""
    if shown.row.metric not in EMPTY_BOXES:
        return None
    metric, what = EMPTY_BOXES[shown.row.metric]
    table = comparison.results
    table = table[
        (table["analysis"] == "discovery") & (table["metric"] == metric) & (table["layer"] == shown.row.layer)
    ]
    known = table.set_index("model")["value"]
    shares = {name: float(known[name]) for name in (shown.row.model, comparison.baseline.name) if name in known}
    if not shares or max(shares.values()) <= UNCUT:
        return None
    counts = " and ".join(f"in {short(share)} % of the pictures for {name}" for name, share in shares.items())
    return (
        f"{shown.heading}, layer {int(shown.row.layer)}: not compared; {what} {counts}, which is no score of a model."
    )


def difference_sentence(shown: Shown, baseline: str) -> str:
    """A difference in words; none is claimed whose interval holds zero, or that fewer than six pictures make."""
    row = shown.row
    name = shown.heading if shown.heading.startswith("mIoU") else shown.heading[0].upper() + shown.heading[1:]
    where = f"{name}, layer {int(row.layer)}: " if pd.notna(row.layer) else f"{name}: "
    size = short(abs(row.difference))
    if pd.isna(row.n):
        same = "the same number" if row.difference == 0 else f"{size} {_way(row.difference)}"
        return f"{where}{same} than {baseline}".replace("number than", "number as") + (
            "; a number of all pictures together, so that no interval says whether this is chance."
        )
    pictures = f"{int(row.n)} picture{'s' * (int(row.n) != 1)}"
    if row.difference == 0 and row.low == 0 and row.high == 0:
        return f"{where}no difference at all from {baseline} on {pictures}."
    mean = f"{row.difference:+.3g}".replace("e-0", "e-")
    if pd.isna(row.low):
        return f"{where}{mean} on a single picture, from which no interval follows."
    scale = max(0, 2 - int(np.floor(np.log10(max(abs(row.low), abs(row.high)))))) if row.low or row.high else 3
    bounds = f"{row.low:.{min(scale, 8)}f} to {row.high:.{min(scale, 8)}f}"
    if row.differing < FEWEST_DIFFERING:
        differ = f"{int(row.differing)} of {pictures} differ{'s' * (int(row.differing) == 1)}, and {FEWEST_DIFFERING} are needed"
        return f"{where}can't be told apart from {baseline}: {differ}; the mean difference is {mean} ({bounds})."
    if row.low <= 0 <= row.high:
        return f"{where}can't be told apart from {baseline} on {pictures}; the mean difference is {mean} ({bounds})."
    if shown.of_pictures:
        return f"{where}{_mean_and_whole(row, baseline, pictures, bounds)}"
    return f"{where}{size} {_way(row.difference)} than {baseline} on the same {pictures} ({bounds})."


def _mean_and_whole(row: Any, baseline: str, pictures: str, bounds: str) -> str:
    """Both differences of a ratio of sums, as mIoU: that of the means over pictures, which has the interval, and that of the two
    numbers themselves. They weigh pictures and classes otherwise, and may contradict each other."""
    mean = f"{short(abs(row.difference))} {_way(row.difference)} than {baseline} in the mean over the same {pictures} ({bounds})"
    whole = f"{short(abs(row.of_means))} {_way(row.of_means)}" if row.of_means else "no different"
    if row.difference * row.of_means > 0:
        return f"{mean}, {whole} over all of them together."
    return f"nothing is claimed: {mean}, but {whole} over all of them together."


def _way(difference: float) -> str:
    return "higher" if difference > 0 else "lower"
