"""What was found, in plain sentences made from the numbers, no stronger than their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from diffusionlens.pages.diffusion_findings import (
    discovery_sentence,
    leakage_sentence,
    provenance_sentence,
    spread_sentence,
)
from diffusionlens.pages.numbers import overlap, percent_with_interval, short, with_interval
from diffusionlens.pages.probe_findings import gain_sentence, probe_sentence, protocol_sentence


@dataclass(frozen=True)
class Finding:
    """A sentence, the model that it is of (None when of several), the rows that it is made from, and the stem of the
    figure that shows them."""

    text: str
    model: str | None = None
    warning: bool = False
    rows: tuple[Any, ...] = ()
    figure: str | None = None


_FEW = 8
"""Fewer pictures than this give bootstrap intervals that are much too narrow."""


def findings(results: pd.DataFrame, models: Sequence[str], untrained: Sequence[str]) -> list[Finding]:
    """Everything that the table lets one say, warnings first."""
    found = [untrained_warning(untrained)] if untrained else []
    found += _few(results)
    for model in models:
        for sentence, figure in _SENTENCES:
            own = _Numbers(results[results["model"] == model])
            text = sentence(own)
            if text:
                found.append(Finding(text, model, rows=tuple(own.used), figure=figure))
    return found + _comparisons(results, models)


def untrained_warning(models: Sequence[str]) -> Finding:
    names = " and ".join([", ".join(models[:-1]), models[-1]] if len(models) > 1 else models)
    verb, whose = ("is", "Its") if len(models) == 1 else ("are", "Their")
    return Finding(
        f"{names} {verb} untrained: the weights are random. {whose} numbers describe the architecture and the pictures, "
        f"and say nothing about training.",
        warning=True,
    )


def _few(results: pd.DataFrame) -> list[Finding]:
    """A warning where the numbers with intervals come from a handful of pictures."""
    counts = results[results["low"].notna()].groupby("analysis", sort=False)["n"].max()
    few = [f"{_NAMES.get(str(name), str(name))} ({n})" for name, n in counts.items() if n < _FEW]
    if not few:
        return []
    return [
        Finding(f"Very few pictures: {', '.join(few)}. Intervals from so few are too narrow to rely on.", warning=True)
    ]


_NAMES = {"pib": "PiB", "norms": "norms", "sparsity": "attention", "similarity": "similarity", "diffusion": "diffusion"}


class _Numbers:
    """The rows of one model, looked up by metric and layer."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows[rows["head"].isin(["", "mean"]) & rows["value"].notna()]
        self.used: list[Any] = []

    def series(self, analysis: str, metric: str, token: str | None = None) -> list[Any]:
        chosen = self.rows[(self.rows["analysis"] == analysis) & (self.rows["metric"] == metric)]
        if token is not None:
            chosen = chosen[chosen["token"] == token]
        found = list(chosen.sort_values("layer", kind="stable").itertuples(index=False, name="Row"))
        self.used += found
        return found

    def measured(self, analysis: str) -> bool:
        """Whether the model has rows of it."""
        return bool((self.rows["analysis"] == analysis).any())

    def last(self, analysis: str, metric: str, token: str | None = None) -> Any | None:
        before = len(self.used)
        series = self.series(analysis, metric, token)
        self.used[before:] = series[-1:]
        return series[-1] if series else None


def _pib(own: _Numbers) -> str | None:
    last, lift = own.last("pib", "pib"), own.last("pib", "pib_lift")
    chance, centre = own.last("pib", "pib_chance"), own.last("pib", "pib_center")
    if last is None or lift is None or chance is None or centre is None:
        return None
    query = {"cls": "CLS", "cls_final": "the final CLS", "mean_patch": "the mean patch"}.get(last.token, last.token)
    # Both intervals are asked: the bootstrap of the lift is too narrow when (nearly) all pictures are hits.
    if pd.isna(lift.low) or lift.low <= 0 <= lift.high or last.low <= chance.value <= last.high:
        verdict = "which can't be told apart from chance"
    else:
        verdict = "above chance" if lift.low > 0 else "below chance"
    text = (
        f"In layer {last.layer}, the patch most similar to {query} lies on the object in {with_interval(last)} % of "
        f"{last.n} pictures, {verdict} ({short(chance.value)} %); always pointing at the centre hits "
        f"{short(centre.value)} %{_against(last, centre)}."
    )
    # In layer 0 CLS is the same vector for every picture: pointing with it says nothing of the image.
    blocks = [row for row in own.series("pib", "pib") if row.layer > 0]
    best = max(blocks, key=lambda row: (row.value, row.layer), default=last)
    if best.layer == last.layer:
        return text
    if overlap(best, last):
        highest = f"layer {best.layer} with {with_interval(best)} %"
        return f"{text} Of the blocks measured none can be told to point better: the highest is {highest}."
    return (
        f"{text} Layer {best.layer} points better, with {with_interval(best)} %: PiB falls by "
        f"{short(best.value - last.value)} points from there to the last layer."
    )


def _against(last: Any, centre: Any) -> str:
    """How PiB compares with the centre patch as predictor, where both have an interval."""
    if pd.isna(last.low) or pd.isna(centre.low):
        return ""
    if overlap(last, centre):
        return ", and the two can't be told apart"
    return ", and does better" if centre.value > last.value else ", and does worse"


def _similarity(own: _Numbers) -> str | None:
    series = own.series("similarity", "cls_patch_cos")
    if not series:
        return None
    last = series[-1]
    text = f"In layer {last.layer} the mean cosine of CLS with the patches is {with_interval(last)}"
    earlier = [row for row in series if 0 < row.layer < last.layer]
    if not earlier:
        return text + "."
    lowest, highest = min(earlier, key=lambda row: row.value), max(earlier, key=lambda row: row.value)
    if lowest.value < last.value and not overlap(lowest, last):
        text += f", up from {with_interval(lowest)} in layer {lowest.layer}"
        if not overlap(highest, last) and last.value > highest.value:
            text += ": higher than in any earlier block measured"
    elif not overlap(highest, last):
        text += f", down from {with_interval(highest)} in layer {highest.layer}"
    else:
        text += ", which can't be told apart from that of any earlier block measured"
    return text + "."


def _rank(own: _Numbers) -> str | None:
    series = own.series("similarity", "effective_rank")
    if not series:
        return None
    last = series[-1]
    text = f"The effective rank of the patch tokens is {short(last.value)} in layer {last.layer}"
    low, high = min(series, key=lambda row: row.value), max(series, key=lambda row: row.value)
    if len(series) > 1 and short(low.value) == short(high.value):
        text += ", as in every layer"
    elif len(series) > 1:
        text += f"; over the layers measured it runs from {short(low.value)} (layer {low.layer})"
        text += f" to {short(high.value)} (layer {high.layer})"
    return f"{text}. It is one number of all pictures, without an interval."


def _norms(own: _Numbers) -> str | None:
    shares = [row for row in own.series("norms", "outlier_share") if row.token.startswith("valley")]
    if not shares:
        return None
    last = shares[-1]
    if "unimodal" not in last.token:
        text = f"In layer {last.layer}, {percent_with_interval(last)} of the patch tokens form a second mode of large norms"
        hidden = own.last("norms", "outlier_background_share", "valley")
        if hidden is not None:
            text += f"; {percent_with_interval(hidden)} of those lie in the background"
        return text + "."
    elsewhere = [row for row in shares if "unimodal" not in row.token]
    text = f"The patch norms of layer {last.layer} have one mode: no outlier tokens by the valley rule"
    if elsewhere:
        top = max(elsewhere, key=lambda row: row.value)
        return f"{text}, though layer {top.layer} has {percent_with_interval(top)}."
    return text + (", nor in any other layer measured." if len(shares) > 1 else ".")


def _sparsity(own: _Numbers) -> str | None:
    last = own.last("sparsity", "effective_support", "patch>all")
    zeros, density = own.last("sparsity", "zero_share", "patch>all"), own.last("sparsity", "density", "patch>all")
    if last is None or zeros is None or density is None:
        return None
    support = own.last("sparsity", "support", "patch>all")
    text = f"In layer {last.layer}, a patch spreads its attention as over {with_interval(last)} equally weighted tokens"
    if support is not None and density.value > 0:
        text += f" of {round(support.value / density.value)}"
    if support is not None and zeros.value > 1e-3:
        text += f", and gives {short(100 * zeros.value)} % of all tokens a weight of exactly 0"
    else:
        text += "; no weight is exactly 0" if zeros.value == 0 else "; hardly any weight is exactly 0"
    weight = own.last("sparsity", "cls_weight", "patch>cls")
    if weight is not None:
        text += f". {percent_with_interval(weight)} of its weight goes to CLS"
    return text + "."


_SENTENCES: tuple[tuple[Callable[[_Numbers], str | None], str], ...] = (
    (probe_sentence, "probe_by_layer"),
    (protocol_sentence, ""),
    (gain_sentence, "gain_bars"),
    (_pib, "pib_by_layer"),
    (leakage_sentence, "leakage_by_layer"),
    (spread_sentence, "spread_by_distance"),
    (provenance_sentence, "provenance_maps"),
    (discovery_sentence, "discovered"),
    (_similarity, "similarity_by_layer"),
    (_rank, "similarity_by_layer"),
    (_norms, "norms"),
    (_sparsity, "sparsity_by_layer"),
)

_COMPARED = (
    ("pib", "pib", None, "PiB"),
    ("diffusion", "leakage", None, "leakage"),
    ("diffusion", "spread", "all", "spread"),
    ("similarity", "cls_patch_cos", None, "the cosine of CLS with patches"),
    ("similarity", "lds", None, "locality (LDS)"),
    ("sparsity", "effective_support", "patch>all", "the effective support of attention"),
)
# What stands in where models have grids of different sizes, and the plain number depends on the grid.
_ON_OTHER_GRIDS = {
    "pib": ("pib_lift", "PiB above chance"),
    "effective_support": ("entropy_normalized", "the normalised entropy of attention"),
}


def _same_grid(one: _Numbers, other: _Numbers) -> bool:
    """Whether chance and the number of tokens, as far as they are known, agree."""
    chance = [numbers.last("pib", "pib_chance") for numbers in (one, other)]
    sizes = []
    for numbers in (one, other):
        support, density = (numbers.last("sparsity", metric, "patch>all") for metric in ("support", "density"))
        sizes.append(round(support.value / density.value) if support and density and density.value > 0 else None)
    alike = None in chance or abs(chance[0].value - chance[1].value) < 0.05  # type: ignore[union-attr]
    return alike and (None in sizes or sizes[0] == sizes[1])


def _comparisons(results: pd.DataFrame, models: Sequence[str]) -> list[Finding]:
    """Last layers of every pair of models, only as strong as the intervals allow."""
    found = []
    for first, second in combinations(models, 2):
        told, untold = [], []
        used: dict[bool, list[Any]] = {True: [], False: []}
        numbers = [_Numbers(results[results["model"] == model]) for model in (first, second)]
        same = _same_grid(*numbers)
        for analysis, metric, token, name in _COMPARED:
            if not same:
                metric, name = _ON_OTHER_GRIDS.get(metric, (metric, name))
            rows = [own.last(analysis, metric, token) for own in numbers]
            if rows[0] is None or rows[1] is None:
                continue
            used[overlap(*rows)] += rows
            if overlap(rows[0], rows[1]):
                untold.append(name)
            else:
                order = "higher" if rows[0].value > rows[1].value else "lower"
                told.append(f"{name} is {order} in {first} ({short(rows[0].value)} against {short(rows[1].value)})")
        if told:
            found.append(Finding(f"{first} against {second}, last layers: {'; '.join(told)}.", rows=tuple(used[False])))
        if untold:
            found.append(
                Finding(
                    f"{first} and {second} can't be told apart by {', '.join(untold)}: their intervals overlap.",
                    rows=tuple(used[True]),
                )
            )
    return found
