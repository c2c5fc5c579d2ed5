"""A comparison as a result directory: what differs, in sentences, a figure and one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.outcome import versions
from diffusionlens.analysis.run import Measurement
from diffusionlens.comparison.paired import Comparison
from diffusionlens.figures.differences import DIFFERENCE_PANELS, differences_by_layer
from diffusionlens.pages.bundle import write_measured
from diffusionlens.pages.comparison_findings import comparison_findings, shown_differences
from diffusionlens.pages.descriptions import count_of
from diffusionlens.pages.directory import whole_directory
from diffusionlens.pages.figures import PageFigure, draw_figure
from diffusionlens.pages.numbers import short, with_interval
from diffusionlens.pages.page import cell
from diffusionlens.pages.tables import write_formats
from diffusionlens.pages.template import Facts, Page, Table, render
from diffusionlens.per_image import PerImage
from diffusionlens.results import write_table

_FINDINGS_NOTE = (
    "Differences are means over the pictures that both models have, each picture with itself; ranges in brackets are 95 % "
    "intervals from resampling those pictures (paired bootstrap). They say what another choice of pictures would do, and nothing "
    "about another training of the same recipe. Of twenty differences that are none, one is expected to keep clear of zero by "
    "chance. Where fewer than six pictures differ, nothing is claimed."
)
_TABLE_NOTE = (
    "The last layer that both have. Each model's own number, and its paired difference to the baseline with a 95 % interval. "
    "Every series, layer and count is in tables/differences.csv. A difference marked * is a mean of pictures where the numbers "
    "beside it are of all pictures together (a ratio of sums as mIoU, or each model's own pictures), so that it is not their "
    "difference."
)


def write_comparison(comparison: Comparison, out: Path | str, command: str = "") -> Path:
    """Writes everything of a comparison into `out` and returns the page's path.

    Raises:
        InputError: as `whole_directory`.
    """
    manifest = _manifest(comparison, command)
    table = comparison_table(comparison, intervals=True)
    with whole_directory(out) as directory:
        (directory / "figures").mkdir()
        (directory / "tables").mkdir()
        figures = draw_differences(comparison, directory / "figures")
        write_formats(comparison_table(comparison, intervals=False), table, directory / "tables", "comparison")
        write_table(comparison.differences, directory / "tables" / "differences.csv")
        page = render(_page(comparison, manifest, figures, table))
        write_measured(Measurement(comparison.results, PerImage([comparison.per_image]), [], manifest), page, directory)
    return Path(out).expanduser().resolve() / "index.html"


def comparison_table(comparison: Comparison, *, intervals: bool) -> pd.DataFrame:
    """Metrics by models: each one's number, and from the second on its difference to the baseline.

    With `intervals` cells are text; without, numbers, and the bounds have columns of their own.
    """
    baseline = comparison.baseline.name
    lines: dict[tuple[str, str, str], dict[str, object]] = {}
    for shown in shown_differences(comparison.differences):
        row = shown.row
        key = (str(row.analysis), str(row.metric), str(row.token))
        line = lines.setdefault(key, {"metric": shown.heading, "layer": int(row.layer)})
        for name in (baseline, row.model):
            line.setdefault(name, _number(comparison, name, row, text=intervals))
        if intervals:
            line[f"{row.model} − {baseline}"] = _signed(row) + " *" * shown.of_pictures
        else:
            stem = f"{row.model} - {baseline}"
            line |= {stem: row.difference, f"{stem} low": row.low, f"{stem} high": row.high}
        if pd.notna(row.n):
            line["n"] = max(int(row.n), int(str(line.get("n", 0))))
    table = pd.DataFrame(list(lines.values()))
    table = table[[name for name in table.columns if name != "n"]].assign(n=table.get("n"))
    return _as_text(table) if intervals else table


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    counts = ["–" if pd.isna(n) else str(int(n)) for n in table["n"]]
    return table.drop(columns="n").astype(object).fillna("–").assign(n=counts)


def _number(comparison: Comparison, model: str, row: Any, *, text: bool) -> object:
    table = comparison.results
    chosen = table["model"] == model
    for column in ("analysis", "metric", "layer", "token", "head"):
        chosen &= table[column] == getattr(row, column)
    value = float(table.loc[chosen, "value"].iloc[0])
    return short(value) if text else value


def _signed(row: Any) -> str:
    """`+3.10 (0.40 to 5.80)`."""
    text = with_interval(pd.Series({"value": row.difference, "low": row.low, "high": row.high}))
    return ("+" if row.difference > 0 else "") + text


def draw_differences(comparison: Comparison, directory: Path, prefix: str = "") -> list[PageFigure]:
    """The differences by layer, saved under `prefix` and the figure's name, and for a page; nothing where there are none."""
    rows = comparison.differences.rename(columns={"difference": "value"}).assign(
        data=str(comparison.results["data"].iloc[0])
    )

    def describe() -> tuple[str, str]:
        shown = pd.concat([panel.rows(rows) for panel in DIFFERENCE_PANELS])
        said = " ".join(found.text for found in comparison_findings(comparison) if not found.warning)
        return f"{count_of(shown)} in common, of {rows['data'].iloc[0]}.", said

    drawn = draw_figure(
        "differences_by_layer",
        f"What differs from {comparison.baseline.name}, layer by layer",
        f"Each model's value minus that of {comparison.baseline.name} on the same picture, averaged over pictures; bands are "
        f"95 % intervals from resampling pairs. Dotted: no difference. Where a band holds that line, nothing can be said. A "
        f"curve without a band is of numbers that only all pictures together have.",
        lambda: differences_by_layer(rows, comparison.names),
        describe,
        directory,
        prefix,
    )
    return [] if drawn is None else [drawn]


def _page(comparison: Comparison, manifest: dict[str, Any], figures: Sequence[PageFigure], table: pd.DataFrame) -> Page:
    found = comparison_findings(comparison)
    baseline, others = comparison.names[0], comparison.names[1:]
    rows = [[cell(str(value)) for value in line] for line in table.values.tolist()]
    data = manifest["data"][0]
    return Page(
        title=f"{' · '.join(others)} against {baseline}, on {data['label']}",
        lead=f"{len(others)} model{'s' * (len(others) > 1)} compared with {baseline}, picture by picture.",
        warnings=[finding for finding in found if finding.warning],
        groups=[
            (f"{name} against {baseline}", [finding for finding in found if finding.model == name]) for name in others
        ],
        figures=figures,
        tables=[Table(f"Compared with {baseline}", list(table.columns), rows)],
        layer_tables=(),
        made=[_facts(entry) for entry in manifest["comparison"]["entries"]],
        left_out=comparison.left_out,
        versions=manifest["versions"],
        tables_note=_TABLE_NOTE,
        findings_note=_FINDINGS_NOTE,
    )


def _facts(entry: dict[str, Any]) -> Facts:
    shown = ("directory", "model", "given as", "SHA-256", "data", "settings", "command", "versions")
    return Facts(entry["name"], [(name, str(entry[name])) for name in shown if entry.get(name)])


def _manifest(comparison: Comparison, command: str) -> dict[str, Any]:
    entries = []
    for entry in comparison.entries:
        manifest = entry.result.manifest
        entries.append(
            {
                "name": entry.name,
                "directory": str(entry.result.path),
                "model": entry.model,
                "given as": entry.facts.get("spec"),
                "SHA-256": entry.facts.get("sha256"),
                "data": ", ".join(str(data.get("spec")) for data in manifest["data"]),
                "settings": ", ".join(f"{key}={value}" for key, value in manifest.get("settings", {}).items()),
                "command": manifest.get("command", ""),
                "versions": ", ".join(f"{key} {value}" for key, value in manifest.get("versions", {}).items()),
            }
        )
    first = comparison.baseline.result.manifest
    return {
        "models": [{**entry.facts, "label": entry.name} for entry in comparison.entries],
        "data": first["data"],
        "analyses": first.get("analyses", {}),
        "settings": first.get("settings", {}),
        "left_out": comparison.left_out,
        "comparison": {"baseline": comparison.baseline.name, "warnings": comparison.warnings, "entries": entries},
        "versions": versions(),
        "command": command,
    }
