"""From a plan's finished jobs to what stands on the page: a part for every section, its figures and tables written on the way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.measure import parse_layers
from diffusionlens.analysis.probes.heads.kinds import KINDS, parse_kinds
from diffusionlens.analysis.run import Measurement
from diffusionlens.analysis.track import Moment, with_moments
from diffusionlens.comparison.paired import compare_results
from diffusionlens.comparison.result_directory import Result
from diffusionlens.errors import InputError
from diffusionlens.explorer.section import Section, explorer_section
from diffusionlens.pages.comparison import draw_differences
from diffusionlens.pages.descriptions import count_of
from diffusionlens.pages.figures import PageFigure, draw_figures
from diffusionlens.pages.findings import Finding, findings
from diffusionlens.pages.page import ANALYSES, by_layer, cell
from diffusionlens.pages.probe_remarks import probe_remarks
from diffusionlens.pages.tables import (
    Setting,
    best_cells,
    better_headings,
    key_metrics,
    last_layer_rows,
    last_layer_table,
    write_formats,
)
from diffusionlens.pages.template import PageSection, Table
from diffusionlens.pages.track import draw_track, track_findings, track_table
from diffusionlens.plans.differences import HEADLINES, difference, sentence
from diffusionlens.plans.jobs import Job
from diffusionlens.plans.protocol import protocol_of
from diffusionlens.plans.published import read_published
from diffusionlens.plans.schema import (
    DrawnSection,
    ExplorerSection,
    MeasureSection,
    Plan,
    ProbeSection,
    TableSection,
    TrackSection,
)
from diffusionlens.plans.score_table import published_table, score_table, scores_of

_FIRST = ("probe_by_layer", "gain_bars", "pib_by_layer", "leakage_by_layer")
"""Figures whose sentences come first on the page; those of the others stand in their section."""


@dataclass
class Content:
    """What the sections have brought: parts of the page, sentences for its beginning (`against` the baseline, and `first` of each
    model), and captions of what was written."""

    parts: list[PageSection] = field(default_factory=list)
    against: list[Finding] = field(default_factory=list)
    first: list[Finding] = field(default_factory=list)
    captions: dict[str, str] = field(default_factory=dict)
    explorer: Section | None = None


@dataclass(frozen=True)
class Finished:
    """A plan with what its jobs have found."""

    plan: Plan
    models: Sequence[str]
    jobs: Sequence[Job]
    done: Sequence[Measurement]
    seed: int

    def of(self, section: str) -> list[Measurement]:
        """The section's measurements, one for each of its data sets."""
        return [own for job, own in zip(self.jobs, self.done, strict=True) if section in job.sections]


def content_of(finished: Finished, directory: Path) -> Content:
    """Writes the figures and tables of every section into `directory` and returns what the page shows."""
    content = Content()
    content.against += _against_baseline(finished)
    many = len({own.manifest["data"][0]["label"] for own in finished.done}) > 1
    for name, section in finished.plan.sections.items():
        if isinstance(section, TableSection):
            content.parts.append(_table_part(finished, name, section, directory, content))
        elif isinstance(section, ExplorerSection):
            shown = [
                entry.explored for own in finished.of(name) for entry in own.material if entry.explored is not None
            ]
            content.explorer = explorer_section(shown, section.title)
        elif isinstance(section, TrackSection):
            content.parts.append(_track_part(finished, name, section, directory, content))
        else:
            content.parts.append(_drawn_part(finished, name, section, directory, content, many=many))
    return content


def _against_baseline(finished: Finished) -> Iterator[Finding]:
    """Every other model against the first, picture by picture."""
    many = len({own.manifest["data"][0]["label"] for own in finished.done}) > 1
    tables = [part for part in finished.plan.sections.values() if isinstance(part, TableSection)]
    scores = {
        (score.analysis, score.metric, score.token.split(" | ")[0]): score
        for score in [*HEADLINES, *(one for part in tables for one in scores_of(finished.plan, part))]
    }
    for model in finished.models[1:]:
        for score in scores.values():
            for job, own in zip(finished.jobs, finished.done, strict=True):
                if job.kind == "track":
                    continue
                row = difference(own, finished.models[0], model, score, finished.seed)
                if row is not None:
                    title = f"{score.title} on {job.pair.label}" if many else score.title
                    yield sentence(row, title, finished.models[0], None)


def _drawn_part(
    finished: Finished, name: str, section: DrawnSection, directory: Path, content: Content, *, many: bool
) -> PageSection:
    figures: list[PageFigure] = []
    said: list[Finding] = []
    tables: list[Table] = []
    folded: list[tuple[str, Sequence[Table]]] = []
    notes: list[str] = []
    measured = finished.of(name)
    stems = _stems(name, [own.manifest["data"][0]["label"] for own in measured])
    for own, stem in zip(measured, stems, strict=True):
        label = own.manifest["data"][0]["label"]
        results = _of_section(own, section)
        drawn = draw_figures(
            results, finished.models, own.material, directory / "figures", section.figures, prefix=stem
        )
        if section.differences and len(finished.models) > 1:
            drawn += _differences(own, results, finished.seed, directory, stem)
        protocol = protocol_of(own, section)
        notes.append(f"{label}: {protocol}" if len(measured) > 1 else protocol)
        for figure in drawn:
            content.captions[f"figures/{figure.stem}"] = (
                f"{_stop(figure.title)} {figure.caption} {figure.basis} {protocol}"
            )
        figures += drawn
        untrained = [entry["label"] for entry in own.manifest["models"] if entry["untrained"]]
        # Of all layers, also where the section shows the last alone: sentences say which layer is the best.
        remarks = probe_remarks(own.manifest) if isinstance(section, ProbeSection) else []
        for found in [*findings(_of_analyses(own, section), finished.models, untrained), *remarks]:
            if found.model is None and not found.warning:
                continue  # pairs of models are compared picture by picture
            if not found.warning and _teller(finished, own, found) != name:
                continue
            text = f"{label}: {found.text}" if many and not found.warning else found.text
            own_stem = stem + found.figure if found.figure else None
            kept = Finding(text, found.model, found.warning, found.rows, own_stem)
            if kept.warning or found.figure in _FIRST:
                content.first.append(kept)
            else:
                said.append(Finding(f"{found.model}: {text}", None, rows=found.rows, figure=own_stem))
        for analysis in _analyses(section, results):
            if section.table:
                tables += _last_layer(finished, results, analysis, stem, protocol, section, directory, content)
        if section.by_layer:
            folded += [(f"{title} ({label})", own_tables) for title, own_tables in by_layer(results, finished.models)]
    return PageSection(name, section.title, section.caption, said, figures, tables, folded, notes)


def _teller(finished: Finished, own: Measurement, found: Finding) -> str:
    """The section that says a sentence, of those that share its job: the first that draws the figure, else the first."""
    job = next(job for job, done in zip(finished.jobs, finished.done, strict=True) if done is own)
    analyses = {str(row.analysis) for row in found.rows}
    asking = [
        (name, section)
        for name in job.sections
        if isinstance(section := finished.plan.sections[name], MeasureSection | ProbeSection)
        and (not found.rows or analyses & set(_names(section)))  # a remark on the whole job is of its first section
    ]
    drawing = [name for name, section in asking if found.figure in section.figures]
    return (drawing or [name for name, _ in asking])[0]


def _names(section: DrawnSection) -> Sequence[str]:
    """The analyses of a section, as the table calls them."""
    return [section.task, "complementarity"] if isinstance(section, ProbeSection) else section.analyses


def _of_analyses(own: Measurement, section: DrawnSection) -> pd.DataFrame:
    return own.results[own.results["analysis"].isin(_names(section))]


def _of_section(own: Measurement, section: DrawnSection) -> pd.DataFrame:
    """The rows that the section asked for: its analyses, tokens and layers, of what it shares with others."""
    results = _of_analyses(own, section)
    if isinstance(section, ProbeSection):
        kinds = results["token"].map(lambda token: token.partition(" ")[0])
        results = results[kinds.isin(parse_kinds(section.tokens)) | ~kinds.isin(KINDS)]  # a preset may have its own
    if section.layers == "all":
        return results
    keep = results["layer"].isna()
    for entry in own.manifest["models"]:
        layers = parse_layers(section.layers, entry["depth"], entry["label"])
        keep |= (results["model"] == entry["label"]) & results["layer"].isin(layers)
    return results[keep]


def _analyses(section: DrawnSection, results: pd.DataFrame) -> list[str]:
    return [analysis for analysis in key_metrics(results) if analysis in _names(section)]


def _last_layer(
    finished: Finished,
    results: pd.DataFrame,
    analysis: str,
    stem: str,
    protocol: str,
    section: DrawnSection,
    directory: Path,
    content: Content,
) -> list[Table]:
    """The table of the last layer, written and for the page; none where there is no number."""
    plain = last_layer_table(results, analysis, finished.models, intervals=False)
    if plain.empty:
        return []
    shown = last_layer_table(results, analysis, finished.models, intervals=True).fillna("–")
    title = ANALYSES.get(analysis, analysis)
    data = str(results["data"].iloc[0])
    of = last_layer_rows(results, analysis, finished.models)
    counted = count_of(of) if of["low"].notna().any() else "no intervals"
    basis = f"{title} on {data} ({counted}), last layer"
    caption = f"{_stop(section.title)} {basis}; in brackets 95 % intervals; best score in bold. {protocol}"
    file = f"{stem}{analysis}"
    setting = Setting(best_cells(plain, better_headings(analysis)), caption=caption, label=f"tab:{file}")
    write_formats(plain, shown, directory / "tables", file, setting)
    content.captions[f"tables/{file}"] = caption
    return [_on_page(basis, shown, setting)]


def _on_page(caption: str, shown: pd.DataFrame, setting: Setting) -> Table:
    rows = [[(str(line[0]), ""), *map(cell, map(str, line[1:]))] for line in shown.values.tolist()]
    return Table(caption, list(shown.columns), rows, setting.bold, setting.ruled)


def _differences(own: Measurement, results: pd.DataFrame, seed: int, directory: Path, stem: str) -> list[PageFigure]:
    """The section's numbers of all models against the first, by layer; nothing where they have no layer in common."""
    per_image = own.per_image[own.per_image["analysis"].isin(list(results["analysis"].unique()))]
    try:
        comparison = compare_results([Result("", Path(), results, per_image, own.manifest)], seed=seed)
    except InputError:
        return []
    return draw_differences(comparison, directory / "figures", prefix=stem)


def _track_part(finished: Finished, name: str, section: TrackSection, directory: Path, content: Content) -> PageSection:
    figures: list[PageFigure] = []
    said: list[Finding] = []
    tables: list[Table] = []
    notes: list[str] = []
    for own in finished.of(name):
        results, runs = tracked(own)
        results = results[results["analysis"].isin(section.analyses)]
        drawn = draw_track(results, runs, directory / "figures", section.figures, prefix=f"{name}_")
        protocol = protocol_of(own, section)
        notes.append(protocol)
        for figure in drawn:
            content.captions[f"figures/{figure.stem}"] = (
                f"{_stop(figure.title)} {figure.caption} {figure.basis} {protocol}"
            )
        figures += drawn
        for found in track_findings(results, runs):
            kept = Finding(found.text, found.model, rows=found.rows, figure=f"{name}_{found.figure}")
            content.first.append(kept)
        for place, run in enumerate(runs):
            plain, shown = (track_table(results[results["run"] == run], intervals=value) for value in (False, True))
            file = f"{name}_{place + 1}" if len(runs) > 1 else name
            caption = f"{run} by epoch, last layer; in brackets 95 % intervals. {protocol}"
            setting = Setting(caption=caption, label=f"tab:{file}")
            write_formats(plain, shown, directory / "tables", file, setting)
            content.captions[f"tables/{file}"] = caption
            tables.append(_on_page(f"{run} by epoch", shown, setting))
    return PageSection(name, section.title, section.caption, said, figures, tables, (), notes)


def tracked(own: Measurement) -> tuple[pd.DataFrame, list[str]]:
    """The table of a track with `run`, `epoch` and `step`, and the runs."""
    moments = [
        Moment(entry["run"], entry["name"], entry["epoch"], entry["step"], Path())
        for entry in own.manifest["checkpoints"]
    ]
    return with_moments(own.results, moments), list(dict.fromkeys(moment.run for moment in moments))


def _table_part(finished: Finished, name: str, section: TableSection, directory: Path, content: Content) -> PageSection:
    done: Mapping[str, Sequence[Measurement]] = {
        column.section: finished.of(column.section) for column in section.columns
    }
    table = score_table(finished.plan, section, done, finished.models, finished.seed)
    caption = f"{_stop(section.title)} Last layers; in brackets 95 % intervals; best value of a column in bold."
    if len(finished.models) > 1:
        caption += f" Differences to {finished.models[0]}: over the pictures that both have (paired bootstrap)."
    caption += f" {_counts(done)}."
    if section.published is not None and table.shown["model"].str.startswith("published: ").any():
        beside = read_published(section.published)
        caption += f" Published rows: {beside.source}; other models, data and scale ({beside.protocol})."
    setting = Setting(table.setting.bold, table.setting.ruled, caption, f"tab:{name}")
    write_formats(table.plain, table.shown, directory / "tables", name, setting)
    content.captions[f"tables/{name}"] = " ".join([_stop(section.title), *table.notes])
    tables = [_on_page(f"{section.title}: last layers, {_counts(done)}", table.shown, setting)]
    if section.published is not None:
        published = read_published(section.published)
        known = published_table(published)
        file, source = f"{name}_published", f"Published: {published.source} ({published.table}); {published.protocol}."
        write_formats(known, known, directory / "tables", file, Setting(caption=source, label=f"tab:{file}"))
        tables.append(_on_page(source, known, Setting()))
    return PageSection(name, section.title, section.caption, (), (), tables, (), table.notes)


def _counts(done: Mapping[str, Sequence[Measurement]]) -> str:
    counts: dict[str, Any] = {}
    for own in (own for each in done.values() for own in each):
        data = own.manifest["data"][0]
        counts.setdefault(data["label"], data["measured"])
    return ", ".join(f"{count} pictures of {label}" for label, count in counts.items())


def _stop(title: str) -> str:
    """The title as a sentence."""
    return title if title.endswith(("?", "!", ".")) else f"{title}."


def _stems(name: str, labels: Sequence[str]) -> list[str]:
    """How the files of a section on each of its data sets begin, all unlike."""
    if len(labels) == 1:
        return [f"{name}_"]
    plain = [_plain(label) for label in labels]
    return [
        f"{name}_{text}_" if plain.count(text) == 1 else f"{name}_{text}{place + 1}_"
        for place, text in enumerate(plain)
    ]


def _plain(label: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in label)
