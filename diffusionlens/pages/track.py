"""A tracked run as a result directory: curves over training, what they say, one table a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.track import Track
from diffusionlens.figures.layer_curves import Panel
from diffusionlens.figures.trajectories import LAYER_PANELS, TRACK_PANELS, last_layer, layers_by_epoch, metric_by_epoch
from diffusionlens.pages.bundle import write_measured
from diffusionlens.pages.descriptions import count_of
from diffusionlens.pages.diffusion_findings import EMPTY_BOXES, UNCUT
from diffusionlens.pages.directory import whole_directory
from diffusionlens.pages.figures import PageFigure, draw_figure
from diffusionlens.pages.findings import Finding
from diffusionlens.pages.numbers import overlap, short, with_interval
from diffusionlens.pages.page import cell, facts_of_data, facts_of_run, unmeasured
from diffusionlens.pages.tables import write_formats
from diffusionlens.pages.template import Facts, Page, Table, render

_NAMED = {
    "pib": ("Point-in-Box", " %"),
    "cls_patch_cos": ("the mean cosine of CLS with the patches", ""),
    "lds": ("locality (LDS)", ""),
    "srss": ("the contrast of regions (SRSS)", ""),
    "effective_rank": ("the effective rank", ""),
    "outlier_share": ("the share of outlier tokens (MAD)", ""),
    "effective_support": ("the effective support of attention", ""),
    "leakage": ("leakage", " points"),
    "spread": ("spread", " of a whole exchange"),
    "corloc_lost": ("CorLoc of LOST", " %"),
    "corloc_tokencut": ("CorLoc of TokenCut", " %"),
    "jaccard_attention": ("the Jaccard index of the best head's attention", " %"),
}
"""How sentences name the metrics of the panels that they speak of, and their unit."""


def write_track(track: Track, out: Path | str) -> Path:
    """Writes everything of a track into `out` and returns the page's path.

    Raises:
        InputError: as `whole_directory`.
    """
    results, runs = track.results(), _runs(track)
    with whole_directory(out) as directory:
        (directory / "figures").mkdir()
        (directory / "tables").mkdir()
        figures = draw_track(results, runs, directory / "figures")
        tables = []
        for place, run in enumerate(runs):
            plain, shown = (track_table(results[results["run"] == run], intervals=value) for value in (False, True))
            write_formats(plain, shown, directory / "tables", f"track_{place + 1}" if len(runs) > 1 else "track")
            cells = shown.astype(str).values.tolist()
            rows = [[(row[0], ""), *(cell(text) for text in row[1:])] for row in cells]
            tables.append(Table(f"{run} by epoch", list(shown.columns), rows))
        page = _page(results, runs, track.measurement.manifest, figures, tables)
        write_measured(track.measurement, render(page), directory)
    return Path(out).expanduser().resolve() / "index.html"


TRACK_STEMS = ("track_by_epoch", "track_by_layer")
"""The names of the figures."""


def draw_track(
    results: pd.DataFrame,
    runs: Sequence[str],
    directory: Path,
    stems: Sequence[str] = TRACK_STEMS,
    prefix: str = "",
) -> list[PageFigure]:
    """The curves over training as PNG and PDF in `directory`, and for a page.

    Args:
        results: the tidy table with `run`, `epoch` and `step`.
    """
    data = str(results["data"].iloc[0])

    def describe(panels: Sequence[Panel]) -> tuple[str, str]:
        rows = pd.concat([panel.rows(results) for panel in panels])
        return f"{count_of(rows)} of {data}.", " ".join(finding.text for finding in track_findings(results, runs))

    figures = {
        "track_by_epoch": (
            "What training does to the last layer",
            "The last measured layer at every checkpoint; bands are 95 % intervals over pictures. Epoch 0 is the untrained "
            "network. Dense degradation is a Point-in-Box or locality that first rises and then falls while training goes on.",
            lambda: metric_by_epoch(results, runs),
            lambda: describe(TRACK_PANELS),
        ),
        "track_by_layer": (
            "Where in the network it happens",
            "By layer, one line a checkpoint, from pale (early) to strong (late); dotted is the first checkpoint.",
            lambda: layers_by_epoch(results, runs),
            lambda: describe(LAYER_PANELS),
        ),
    }
    drawn = [draw_figure(stem, *figures[stem], directory, prefix) for stem in stems]
    return [figure for figure in drawn if figure is not None]


def track_table(results: pd.DataFrame, *, intervals: bool) -> pd.DataFrame:
    """Epochs by metrics at the last layer, of one run."""
    columns: dict[str, dict[float, object]] = {}
    for panel in TRACK_PANELS:
        rows = last_layer(panel.rows(results))
        if not rows.empty:
            columns[panel.title] = {
                float(str(row.epoch)): with_interval(row) if intervals else row.value for row in rows.itertuples()
            }
    table = pd.DataFrame(columns).sort_index()
    if intervals:
        table = table.fillna("–")
    table.insert(0, "epoch", [f"{epoch:g}" if intervals else epoch for epoch in table.index])
    return table.reset_index(drop=True)


def track_findings(results: pd.DataFrame, runs: Sequence[str]) -> list[Finding]:
    """For every run and metric of the last layer: from where to where, and what was lost since the best, no stronger than the
    intervals."""
    found = []
    for run in runs:
        own = results[results["run"] == run]
        for panel in TRACK_PANELS:
            if panel.metric not in _NAMED:
                continue
            name, unit = _NAMED[panel.metric]
            rows = list(last_layer(panel.rows(own)).itertuples(index=False, name="Row"))
            if text := _no_score(own, panel.metric, name) or _course(rows, name, unit):
                found.append(Finding(text, run, figure="track_by_epoch", rows=tuple(rows)))
    return found


def _no_score(own: pd.DataFrame, metric: str, name: str) -> str | None:
    """What is said in the place of a course of CorLoc when the way finds nothing in many pictures of a checkpoint."""
    if metric not in EMPTY_BOXES:
        return None
    share, what = EMPTY_BOXES[metric]
    rows = last_layer(own[(own["analysis"] == "discovery") & (own["metric"] == share)])
    points: list[Any] = list(rows.itertuples(index=False, name="Row"))
    top = max(points, key=lambda row: row.value, default=None)
    if top is None or top.value <= UNCUT:
        return None
    return (
        f"{name[0].upper()}{name[1:]} in layer {top.layer} is not followed: at epoch {top.epoch:g}, {what} in "
        f"{short(top.value)} % of the pictures, which is no score of a model."
    )


def _course(rows: Sequence[Any], name: str, unit: str) -> str | None:
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    title = name[0].upper() + name[1:]
    if len(rows) == 1:
        return f"{title} in layer {last.layer} at epoch {last.epoch:g}: {with_interval(last)}{unit}."
    text = (
        f"{title} in layer {last.layer} goes from {with_interval(first)}{unit} at epoch {first.epoch:g} to "
        f"{with_interval(last)}{unit} at epoch {last.epoch:g}"
    )
    if pd.isna(first.low) or pd.isna(last.low):
        return f"{text} (no interval)."
    if overlap(first, last):
        text += ", which can't be told apart"
    for extreme, word in (
        (max(rows, key=lambda row: row.value), "highest"),
        (min(rows, key=lambda row: row.value), "lowest"),
    ):
        if extreme.epoch not in (first.epoch, last.epoch) and not overlap(extreme, last):
            change = "lost" if word == "highest" else "gained"
            text += (
                f"; {word} at epoch {extreme.epoch:g} with {with_interval(extreme)}{unit}, and "
                f"{short(abs(extreme.value - last.value))} {change} since"
            )
    return text + "."


def _page(
    results: pd.DataFrame,
    runs: Sequence[str],
    manifest: dict[str, Any],
    figures: Sequence[PageFigure],
    tables: Sequence[Table],
) -> Page:
    found, data = track_findings(results, runs), manifest["data"][0]
    counts = [len(results.loc[results["run"] == run, "epoch"].unique()) for run in runs]
    named = ", ".join(f"{run} ({count} checkpoints)" for run, count in zip(runs, counts, strict=True))
    return Page(
        title=f"{' · '.join(runs)} over training, on {data['label']}",
        lead=f"{named}, each measured on {data['measured']} pictures of {data['label']}.",
        warnings=[],
        groups=[(run, [finding for finding in found if finding.model == run]) for run in runs],
        figures=figures,
        tables=tables,
        layer_tables=(),
        made=[*_facts_of_runs(runs, manifest), facts_of_data(data), facts_of_run(manifest)],
        left_out=[entry for entry in manifest["left_out"] if entry["model"] not in _earlier(runs, manifest)],
        skipped=data["skipped"],
        notes=data["notes"],
        unmeasured=unmeasured(
            {"models": [one for one in manifest["models"] if one["label"] not in _earlier(runs, manifest)]}
        ),
        versions=manifest["versions"],
    )


def _earlier(runs: Sequence[str], manifest: dict[str, Any]) -> set[str]:
    """The measured checkpoints before the last of each run. What is left out is left out at every one: the page names it once."""
    labels = [[entry["model"] for entry in manifest["checkpoints"] if entry["run"] == run] for run in runs]
    return {label for own in labels for label in own[:-1]}


def _facts_of_runs(runs: Sequence[str], manifest: dict[str, Any]) -> list[Facts]:
    facts = []
    for run in runs:
        labels = [entry["model"] for entry in manifest["checkpoints"] if entry["run"] == run]
        model = next(entry for entry in manifest["models"] if entry["label"] == labels[-1])
        facts.append(
            Facts(
                run,
                [
                    ("checkpoints", ", ".join(label.removeprefix(f"{run}@") for label in labels)),
                    ("architecture", f"{model['architecture']}; {model['parameters'] / 1e6:.2f} M parameters"),
                    ("attention", model["attention"]),
                    ("size", " × ".join(map(str, model["size"]))),
                    ("SHA-256 of the last", model["sha256"] or ""),
                ],
            )
        )
    return facts


def _runs(track: Track) -> list[str]:
    return list(dict.fromkeys(moment.run for moment in track.moments))
