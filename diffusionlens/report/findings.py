"""What was found, in plain sentences made from the numbers, no stronger than their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from diffusionlens.report.numbers import short, with_interval


@dataclass(frozen=True)
class Finding:
    """A sentence, and the model that it is of (None when of several)."""

    text: str
    model: str | None = None
    warning: bool = False


def findings(results: pd.DataFrame, models: Sequence[str], untrained: Sequence[str]) -> list[Finding]:
    """Everything that the table lets one say, warnings first."""
    found = [_untrained(untrained)] if untrained else []
    for model in models:
        own = _Numbers(results[results["model"] == model])
        for sentence in (_pib, _similarity, _norms, _sparsity):
            text = sentence(own)
            if text:
                found.append(Finding(text, model))
    return found + _comparisons(results, models)


def _untrained(models: Sequence[str]) -> Finding:
    names = " and ".join(models)
    verb = "is" if len(models) == 1 else "are"
    return Finding(
        f"{names} {verb} untrained: the weights are random. Its numbers describe the architecture and the pictures, and "
        f"say nothing about training.",
        warning=True,
    )


class _Numbers:
    """The rows of one model, looked up by metric and layer."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows[rows["head"].isin(["", "mean"])]

    def series(self, analysis: str, metric: str, token: str | None = None) -> list[Any]:
        chosen = self.rows[(self.rows["analysis"] == analysis) & (self.rows["metric"] == metric)]
        if token is not None:
            chosen = chosen[chosen["token"] == token]
        return list(chosen.sort_values("layer", kind="stable").itertuples())

    def last(self, analysis: str, metric: str, token: str | None = None) -> Any | None:
        series = self.series(analysis, metric, token)
        return series[-1] if series else None


def overlap(first: Any, second: Any) -> bool:
    """Whether two rows' intervals meet; rows without an interval count as not told apart."""
    bounds = (first.low, first.high, second.low, second.high)
    if any(pd.isna(bound) for bound in bounds):
        return True
    return bool(first.low <= second.high and second.low <= first.high)


def _pib(own: _Numbers) -> str | None:
    last, lift = own.last("pib", "pib"), own.last("pib", "pib_lift")
    chance, centre = own.last("pib", "pib_chance"), own.last("pib", "pib_center")
    if last is None or lift is None or chance is None or centre is None:
        return None
    query = {"cls": "CLS", "cls_final": "the final CLS", "mean_patch": "the mean patch"}.get(last.token, last.token)
    if pd.isna(lift.low) or lift.low <= 0 <= lift.high:
        verdict = "which can't be told apart from chance"
    else:
        verdict = "above chance" if lift.low > 0 else "below chance"
    text = (
        f"In layer {last.layer}, the patch most similar to {query} lies on the object in {with_interval(last)} % of "
        f"{last.n} pictures, {verdict} ({short(chance.value)} %); always pointing at the centre hits {short(centre.value)} %."
    )
    best = max(own.series("pib", "pib"), key=lambda row: row.value)
    if best.layer == last.layer:
        return text
    if overlap(best, last):
        return f"{text} No layer can be told to point better: the highest is layer {best.layer} with {with_interval(best)} %."
    return (
        f"{text} Layer {best.layer} points better, with {with_interval(best)} %: PiB falls by "
        f"{short(best.value - last.value)} points from there to the last layer."
    )


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
            text += ": higher than in any earlier block, as when image-level meaning spreads into patches late"
    elif not overlap(highest, last):
        text += f", down from {with_interval(highest)} in layer {highest.layer}"
    else:
        text += ", which can't be told apart from that of the earlier layers"
    return text + "."


def _norms(own: _Numbers) -> str | None:
    shares = [row for row in own.series("norms", "outlier_share") if row.token.startswith("valley")]
    if not shares:
        return None
    last = shares[-1]
    if "unimodal" not in last.token:
        text = (
            f"In layer {last.layer}, {short(100 * last.value)} % of the patch tokens form a second mode of large norms"
        )
        hidden = own.last("norms", "outlier_background_share", "valley")
        if hidden is not None:
            text += f"; {short(100 * hidden.value)} % of those lie in the background"
        return text + "."
    elsewhere = [row for row in shares if "unimodal" not in row.token]
    text = f"The patch norms of layer {last.layer} have one mode: no outlier tokens by the valley rule"
    if elsewhere:
        top = max(elsewhere, key=lambda row: row.value)
        return f"{text}, though layer {top.layer} has {short(100 * top.value)} %."
    return text + (", nor in any other layer." if len(shares) > 1 else ".")


def _sparsity(own: _Numbers) -> str | None:
    last = own.last("sparsity", "effective_support", "patch>all")
    zeros, density = own.last("sparsity", "zero_share", "patch>all"), own.last("sparsity", "density", "patch>all")
    if last is None or zeros is None or density is None:
        return None
    support = own.last("sparsity", "support", "patch>all")
    text = f"In layer {last.layer}, a patch spreads its attention as over {with_interval(last)} equally weighted tokens"
    if support is not None and zeros.value > 1e-3:
        text += f", and gives {short(100 * zeros.value)} % of all tokens a weight of exactly 0"
    else:
        text += "; no weight is exactly 0" if zeros.value == 0 else "; hardly any weight is exactly 0"
    weight = own.last("sparsity", "cls_weight", "patch>cls")
    if weight is not None:
        text += f". {short(100 * weight.value)} % of its weight goes to CLS"
    return text + "."


_COMPARED = (
    ("pib", "pib", None, "PiB"),
    ("similarity", "cls_patch_cos", None, "the cosine of CLS with patches"),
    ("similarity", "lds", None, "locality (LDS)"),
    ("sparsity", "effective_support", "patch>all", "the effective support of attention"),
)


def _comparisons(results: pd.DataFrame, models: Sequence[str]) -> list[Finding]:
    """Last layers of every pair of models, only as strong as the intervals allow."""
    found = []
    for first, second in combinations(models, 2):
        told, untold = [], []
        for analysis, metric, token, name in _COMPARED:
            rows = [_Numbers(results[results["model"] == m]).last(analysis, metric, token) for m in (first, second)]
            if rows[0] is None or rows[1] is None:
                continue
            if overlap(rows[0], rows[1]):
                untold.append(name)
            else:
                order = "higher" if rows[0].value > rows[1].value else "lower"
                told.append(f"{name} is {order} in {first} ({short(rows[0].value)} against {short(rows[1].value)})")
        if told:
            found.append(Finding(f"{first} against {second}, last layers: {'; '.join(told)}."))
        if untold:
            found.append(
                Finding(f"{first} and {second} can't be told apart by {', '.join(untold)}: their intervals overlap.")
            )
    return found
