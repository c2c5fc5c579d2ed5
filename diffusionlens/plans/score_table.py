"""The table of a report: models by scores of its sections, the differences to the baseline, and what was published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from diffusionlens.analysis.run import Measurement
from diffusionlens.pages.numbers import short, with_interval
from diffusionlens.pages.tables import Setting, best_cells
from diffusionlens.plans.differences import Score, difference, last_row, of_pictures
from diffusionlens.plans.published import Published, read_published
from diffusionlens.plans.schema import Column, MeasureSection, Plan, ProbeSection, TableSection
from diffusionlens.spec import parse_spec

_NONE = "–"


@dataclass
class ScoreTable:
    """`plain`: numbers and bounds; `shown`: cells as text; `setting`: bold, rules; with notes."""

    plain: pd.DataFrame
    shown: pd.DataFrame
    setting: Setting
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Scored:
    """A column of the table: the plan's column on one data set, and the measurement that has it."""

    column: Column
    score: Score
    done: Measurement
    heading: str
    published: int | None


def score_table(
    plan: Plan, section: TableSection, done: Mapping[str, Sequence[Measurement]], models: Sequence[str], seed: int
) -> ScoreTable:
    """The table of `section` from `done`, section -> a measurement for each of its data sets."""
    published = None if section.published is None else read_published(section.published)
    columns = [one for column in section.columns for one in _columns(plan, column, done[column.section], published)]
    lines = [_model_line(model, columns) for model in models]
    apart = [_difference_line(model, models[0], columns, seed) for model in models[1:]]
    beside = [] if published is None else _published_lines(published, columns)
    shown = pd.DataFrame([line for line, _ in (*lines, *apart, *beside)]).fillna(_NONE)
    plain = pd.DataFrame([line for _, line in (*lines, *apart, *beside)])
    values = pd.DataFrame([line for _, line in lines])
    better = {one.heading: one.column.better == "higher" for one in columns}
    best = {(row, list(shown.columns).index(values.columns[place])) for row, place in best_cells(values, better)}
    starts = {len(lines), len(lines) + len(apart)} - {len(shown)}
    table = ScoreTable(plain, shown, Setting(frozenset(best), frozenset(starts)))
    table.notes = _notes(columns, models, published, marked="*" in "".join(shown.iloc[:, 1:].astype(str).sum()))
    return table


def scores_of(plan: Plan, section: TableSection) -> list[Score]:
    """The scores of the columns, as far as the plan alone says which analysis they are of."""
    found = []
    for column in section.columns:
        own = plan.sections[column.section]
        if isinstance(own, ProbeSection):
            found.append(Score(own.task, column.metric, column.token, column.title))
        elif isinstance(own, MeasureSection):
            found += [Score(name, column.metric, column.token, column.title) for name in own.analyses]
    return found


def _columns(plan: Plan, column: Column, done: Sequence[Measurement], published: Published | None) -> list[_Scored]:
    section = plan.sections[column.section]
    analysis = section.task if isinstance(section, ProbeSection) else None
    found = []
    for own in done:
        results = own.results
        rows = results[results["metric"] == column.metric]
        name = analysis or (str(rows["analysis"].iloc[0]) if len(rows) else "")
        data = own.manifest["data"][0]
        kind = parse_spec(data["spec"]).kind
        place = None if published is None else published.column(analysis or "measure", column.metric, kind)
        heading = f"{data['label']} {column.title}"
        found.append(_Scored(column, Score(name, column.metric, column.token, column.title), own, heading, place))
    return found


def _model_line(model: str, columns: Sequence[_Scored]) -> tuple[dict[str, Any], dict[str, Any]]:
    shown: dict[str, Any] = {"model": model}
    plain: dict[str, Any] = {"model": model}
    for one in columns:
        row = last_row(one.done.results, model, one.score)
        shown[one.heading] = None if row is None else with_interval(row)
        if row is not None:
            plain |= {one.heading: row.value, f"{one.heading} low": row.low, f"{one.heading} high": row.high}
    return shown, plain


def _difference_line(
    model: str, baseline: str, columns: Sequence[_Scored], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    name = f"{model} − {baseline}"
    shown: dict[str, Any] = {"model": name}
    plain: dict[str, Any] = {"model": f"{model} - {baseline}"}
    for one in columns:
        row = difference(one.done, baseline, model, one.score, seed)
        if row is None:
            continue
        text = with_interval(pd.Series({"value": row.difference, "low": row.low, "high": row.high}))
        shown[one.heading] = ("+" if row.difference > 0 else "") + text + " *" * of_pictures(row)
        plain |= {one.heading: row.difference, f"{one.heading} low": row.low, f"{one.heading} high": row.high}
    return shown, plain


def _published_lines(published: Published, columns: Sequence[_Scored]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The published rows, and the difference of the second to the first, where a column is of the same score and kind of data."""
    if all(one.published is None for one in columns):
        return []
    rows = {f"published: {name}": values for name, values in published.rows.items()}
    names = list(published.rows)
    if len(names) == 2:
        first, second = published.rows.values()
        apart = tuple(round(b - a, 4) for a, b in zip(first, second, strict=True))
        rows[f"published: {names[1]} − {names[0]}"] = apart
    lines = []
    for name, values in rows.items():
        sign = "+" if "−" in name else ""
        cells = {one.heading: values[one.published] for one in columns if one.published is not None}
        shown = {heading: sign * bool(value > 0) + f"{value:.2f}" for heading, value in cells.items()}
        lines.append(({"model": name, **shown}, {"model": name.replace("−", "-"), **cells}))
    return lines


def _notes(
    columns: Sequence[_Scored], models: Sequence[str], published: Published | None, *, marked: bool
) -> list[str]:
    notes = [
        "Each model at its last layer; ranges in brackets are 95 % intervals. Bold is the best value of a column, which need not "
        "be told apart from the others. "
        + (
            f"Differences are to {models[0]}, over the pictures that both have, each with itself (paired bootstrap): they say "
            f"what another choice of pictures would do, and nothing of another training."
            if len(models) > 1
            else "One model alone has nothing to be compared with."
        )
    ]
    if marked:
        notes.append(
            "A difference marked * is a mean over pictures, where the numbers beside it are of all pictures together (mIoU "
            "is a ratio of sums), so that it is not their difference."
        )
    for one in columns:
        if missing := [model for model in models if last_row(one.done.results, model, one.score) is None]:
            notes.append(
                f"{one.heading}: {', '.join(missing)} has no such number ({one.column.token or one.column.metric})."
            )
    return notes + ([] if published is None else _published_notes(published, columns))


def _published_notes(published: Published, columns: Sequence[_Scored]) -> list[str]:
    where = f"{published.source} ({published.table}); {published.protocol}."
    matched = [one for one in columns if one.published is not None]
    if not matched:
        names = ", ".join(column.title for column in published.columns)
        return [f"Nothing here is of the data of the published table, which has {names}: {where}"]
    parts = []
    for one in matched:
        data = one.done.manifest["data"]
        read = published.columns[one.published or 0].where
        learned = f" and trained on {data[1]['measured']}" if len(data) > 1 else ""
        parts.append(
            f"{one.heading}: here scored on {data[0]['measured']} pictures{learned}; published value read in: {read}"
        )
    sizes = {
        f"{entry['architecture']}, {entry['size'][0]} px" for one in matched for entry in one.done.manifest["models"]
    }
    return [
        f"Published rows are of other models, data and scale than ours, and stand here for orientation only; compare differences "
        f"within a block. {where} {'. '.join(parts)}. Ours: {'; '.join(sorted(sizes))}. {published.unknown}".strip()
    ]


def published_table(published: Published) -> pd.DataFrame:
    """All published numbers, as they are."""
    lines = [
        {"published": name}
        | {column.title: short(value, 4) for column, value in zip(published.columns, values, strict=True)}
        for name, values in published.rows.items()
    ]
    return pd.DataFrame(lines)
