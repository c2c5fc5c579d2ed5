"""Is B really better than A? Results of several directories side by side, with differences picture by picture.

Two models that are measured on the same pictures err on the same pictures: an interval of the difference over pictures is
therefore much narrower than two separate intervals let one think. The pictures are resampled, each with both its values
(paired percentile bootstrap; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from diffusionlens.analysis.intervals import bootstrap_ratio
from diffusionlens.comparison.comparability import refusals, remarks
from diffusionlens.comparison.result_directory import Result
from diffusionlens.errors import InputError, some
from diffusionlens.results import COLUMNS, JACKKNIFE

KEY = ["analysis", "metric", "layer", "head", "token"]
DIFFERENCES = ["model", "baseline", *KEY, "difference", "low", "high", "n", "differing", "of_means"]


@dataclass(frozen=True)
class Entry:
    """A model of a directory; `name` is unlike that of any other entry, `model` its name in the directory."""

    name: str
    model: str
    result: Result

    @property
    def facts(self) -> dict[str, Any]:
        return self.result.entry(self.model)


@dataclass(frozen=True)
class Comparison:
    """What came out. `results`, `per_image`: those of all entries, the baseline first, under their names.

    `differences` has the columns DIFFERENCES: `difference` is the mean over the `n` pictures in common of the model's value
    minus the baseline's, `low` and `high` its 95 % interval, `differing` the number of pictures whose two values differ. Without
    values of pictures it is the difference of the two numbers, and there is no interval and no `n`. `of_means` is the difference
    of the two numbers of results.csv, which is another thing where a number is no mean over pictures and these lack their
    contributions to it.
    """

    entries: list[Entry]
    results: pd.DataFrame
    per_image: pd.DataFrame
    differences: pd.DataFrame
    warnings: list[str]
    left_out: list[dict[str, str]]

    @property
    def baseline(self) -> Entry:
        return self.entries[0]

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]


def compare_results(
    results: Sequence[Result],
    baseline: str | None = None,
    models: Sequence[str] = (),
    seed: int = 0,
    *,
    allow_differences: bool = False,
) -> Comparison:
    """Compares the models of result directories with a baseline, the first one by default.

    Args:
        models: only these, and the baseline; default all, of a tracked run its last checkpoint.
        allow_differences: what would be refused (other pictures, other options) becomes a warning.

    Raises:
        InputError: fewer than two models, an unknown name, nothing in common, or results that can't be compared.
    """
    entries = _choose(_entries(results), baseline, models)
    warnings = []
    for entry in entries[1:]:
        _refuse_strangers(entries[0], entry)
        grave = refusals(entries[0].result, entry.result)
        if grave and not allow_differences:
            raise InputError(
                f"{entry.name} and {entries[0].name} can't be compared: {'; '.join(grave)}; measure both in the same way, or "
                f"say --allow-differences"
            )
        warnings += [f"{entry.name} and {entries[0].name} were not measured in the same way: {text}." for text in grave]
        notes = remarks(entries[0].result, entries[0].model, entry.result, entry.model)
        warnings += [f"{entry.name} and {entries[0].name}: {text}." for text in notes]
    tables = [_renamed(entry.result.results, entry) for entry in entries]
    pictures = [_renamed(entry.result.per_image, entry) for entry in entries]
    parts, left_out = [], []
    for entry, table, values in zip(entries[1:], tables[1:], pictures[1:], strict=True):
        found = _differences(entry, table, values, entries[0], tables[0], pictures[0], seed)
        if found.empty:
            raise InputError(
                f"{entry.name} and {entries[0].name} have no metric of one layer in common; nothing to compare"
            )
        parts.append(found)
        left_out += _not_in_common(entry, table, entries[0], tables[0])
        warnings += _fewer_pictures(entry, values, entries[0], pictures[0], found)
    differences = pd.concat(parts, ignore_index=True)
    return Comparison(
        entries,
        pd.concat(tables, ignore_index=True)[COLUMNS],
        pd.concat([part for part in pictures if len(part)] or pictures[:1], ignore_index=True),
        differences,
        warnings,
        left_out,
    )


def _refuse_strangers(first: Entry, second: Entry) -> None:
    """
    Raises:
        InputError: no analysis is in both, whatever else may differ.
    """
    ours, theirs = (set(entry.result.results["analysis"]) for entry in (second, first))
    if not ours & theirs:
        raise InputError(
            f"{second.name} and {first.name} have no analysis in common ({some(sorted(ours))}; {some(sorted(theirs))}); "
            f"nothing to compare"
        )


def _entries(results: Sequence[Result]) -> list[Entry]:
    """Every model under a name: its own where only one directory has it, else with the directory's."""
    labels = [result.label for result in results]
    if doubles := sorted({label for label in labels if labels.count(label) > 1}):
        raise InputError(f"two directories are called '{doubles[0]}'; tell them apart as a=DIR b=DIR")
    pairs = [(result, model) for result in results for model in result.models]
    names = [model for _, model in pairs]
    return [
        Entry(model if names.count(model) == 1 else f"{result.label}:{model}", model, result) for result, model in pairs
    ]


def _choose(entries: Sequence[Entry], baseline: str | None, models: Sequence[str]) -> list[Entry]:
    known = [entry.name for entry in entries]
    for name in [*models, *([baseline] if baseline is not None else [])]:
        if name not in known:
            raise InputError(f"no model is called '{name}' in these directories; they hold {some(known)}")
    kept = [entry for entry in entries if entry.name in models] if models else [e for e in entries if _is_last(e)]
    first = next((entry for entry in entries if entry.name == baseline), kept[0] if kept else None)
    if first is None or len({entry.name for entry in [first, *kept]}) < 2:
        raise InputError(f"one model alone can't be compared ({some(known)}); wanted two or more")
    return [first, *(entry for entry in kept if entry is not first)]


def _is_last(entry: Entry) -> bool:
    """Whether this is no checkpoint of a tracked run, or its last one."""
    checkpoints = entry.result.manifest.get("checkpoints", [])
    run = next((one["run"] for one in checkpoints if one["model"] == entry.model), None)
    return run is None or [one["model"] for one in checkpoints if one["run"] == run][-1] == entry.model


def _renamed(frame: pd.DataFrame, entry: Entry) -> pd.DataFrame:
    own = frame[frame["model"] == entry.model].assign(model=entry.name)
    # A rule that found no valley is the same rule.
    return own.assign(token=own["token"].str.replace(" (unimodal)", "", regex=False)).reset_index(drop=True)


def _differences(
    entry: Entry,
    table: pd.DataFrame,
    values: pd.DataFrame,
    base: Entry,
    base_table: pd.DataFrame,
    base_values: pd.DataFrame,
    seed: int,
) -> pd.DataFrame:
    """One row for every number that both tables have, in the order of the baseline's."""
    both = base_table[[*KEY, "value"]].merge(table[[*KEY, "value"]], on=KEY, suffixes=("_base", ""))
    both = both[both["value"].notna() & both["value_base"].notna()]
    found = both[KEY].assign(of_means=both["value"] - both["value_base"], model=entry.name, baseline=base.name)
    paired = paired_differences(base_values, values, seed)
    found = found.merge(paired, on=KEY, how="left")
    found["difference"] = found["difference"].fillna(found["of_means"])
    numbers = dict.fromkeys(["difference", "low", "high"], float)  # without a picture in common they are no numbers yet
    return found[DIFFERENCES].astype({"n": "Int64", "differing": "Int64", "layer": "Int64", **numbers})


def paired_differences(first: pd.DataFrame, second: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Mean difference second - first over the pictures that both have, for every series, with its paired interval.

    Args:
        first, second: tables with the columns of per_image.csv.gz, of one model each. Contributions to a ratio of sums stand for
            the ratio, where they are of the same pictures.

    Returns:
        KEY, `difference`, `low`, `high` (NaN for a single picture), `n`, and `differing`, the pictures whose values differ.

    Raises:
        InputError: a picture stands twice in a series.
    """
    first, second = _as_one(first, second)
    joined = first[["name", *KEY, "value"]].merge(
        second[["name", *KEY, "value"]], on=["name", *KEY], suffixes=("_1", "_2")
    )
    joined = joined[joined["value_1"].notna() & joined["value_2"].notna()]
    if joined.empty:
        return pd.DataFrame(columns=[*KEY, "difference", "low", "high", "n", "differing"])
    if joined.duplicated(["name", *KEY]).any():
        name = joined.loc[joined.duplicated(["name", *KEY]), "name"].iloc[0]
        raise InputError(
            f"the picture '{name}' stands twice among the values of pictures; pictures need names of their own"
        )
    groups = joined.groupby(KEY, sort=False, dropna=False)
    series = groups.ngroup().to_numpy()
    keys = joined.loc[~joined.duplicated(KEY), KEY].reset_index(drop=True)
    names, rows = np.unique(joined["name"].to_numpy(dtype=object), return_inverse=True)
    numerator, counted = np.zeros((len(names), len(keys))), np.zeros((len(names), len(keys)))
    numerator[rows, series] = joined["value_2"].to_numpy() - joined["value_1"].to_numpy()
    counted[rows, series] = 1
    n = counted.sum(0)
    low, high = bootstrap_ratio(numerator, counted, seed)
    differing = (numerator != 0).sum(0)
    return keys.assign(difference=numerator.sum(0) / n, low=low, high=high, n=n.astype(int), differing=differing)


def _as_one(first: pd.DataFrame, second: pd.DataFrame) -> list[pd.DataFrame]:
    """The tables with the contributions to a ratio of sums (`results.JACKKNIFE`) in place of the ratios of single pictures, where
    both have them of the same pictures; then the mean difference is that of the two numbers."""
    tables = [first, second]
    of_whole = [set(own.loc[own["metric"].str.endswith(JACKKNIFE), "metric"]) for own in tables]
    for metric in sorted(of_whole[0] | of_whole[1]):
        pictures = [own.loc[own["metric"] == metric, "name"] for own in tables]
        if set(pictures[0]) == set(pictures[1]):
            plain = metric.removesuffix(JACKKNIFE)
            tables = [own[own["metric"] != plain].replace({"metric": {metric: plain}}) for own in tables]
        else:
            tables = [own[own["metric"] != metric] for own in tables]
    return tables


def _not_in_common(entry: Entry, table: pd.DataFrame, base: Entry, base_table: pd.DataFrame) -> list[dict[str, str]]:
    """Whole metrics that only one of two has."""
    own, other = (set(map(tuple, one[["analysis", "metric"]].to_numpy())) for one in (table, base_table))
    lines = []
    for metrics, lacking in ((own - other, base), (other - own, entry)):
        names = sorted(f"{analysis}.{metric}" for analysis, metric in metrics)
        reason = f"{lacking.name} was measured without {'it' if len(names) == 1 else 'them'}"
        if names:
            lines.append({"model": entry.name, "what": ", ".join(names), "reason": reason})
    return lines


def _fewer_pictures(
    entry: Entry, values: pd.DataFrame, base: Entry, base_values: pd.DataFrame, found: pd.DataFrame
) -> list[str]:
    own, other = set(values["name"]), set(base_values["name"])
    if not own or not other:
        return [f"{entry.name} or {base.name} has no values of pictures, so that differences have no interval."]
    both = own & other
    if not both:
        return [f"{entry.name} and {base.name} have no picture in common, so that differences have no interval."]
    lines = []
    if own != other:
        lines.append(
            f"{entry.name} was measured on {len(own)} pictures, {base.name} on {len(other)}; differences with an interval are "
            f"over the {len(both)} in common, the two numbers beside them over each one's own."
        )
    few = found["n"].dropna()
    if len(few) and few.max() < 8:
        lines.append(f"Only {few.max()} pictures in common: intervals from so few are too narrow to rely on.")
    return lines
