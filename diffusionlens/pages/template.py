"""The one page that every command writes: what stands on it, and how it becomes HTML. One file, no network."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from diffusionlens.explorer.section import Section
from diffusionlens.pages.figures import PageFigure
from diffusionlens.pages.findings import Finding
from diffusionlens.pages.numbers import typeset


@dataclass(frozen=True)
class Table:
    """`rows` hold (value, its interval or "") cells; `bold` the (row, column) of the best, `ruled` rows below a rule."""

    caption: str
    head: list[str]
    rows: list[list[tuple[str, str]]]
    bold: frozenset[tuple[int, int]] = frozenset()
    ruled: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Facts:
    """How something was made: (name, value) under a title."""

    title: str
    items: list[tuple[str, str]]


@dataclass(frozen=True)
class PageSection:
    """A part of a report: `text` above its figures, sentences made from its numbers, tables with notes below them."""

    name: str
    title: str
    text: str
    findings: Sequence[Finding] = ()
    figures: Sequence[PageFigure] = ()
    tables: Sequence[Table] = ()
    layer_tables: Sequence[tuple[str, Sequence[Table]]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page from top to bottom. `groups`: sentences under a heading each. `layer_tables`: (summary, tables), folded away.
    A page with `sections` shows those in place of one list of figures and one of tables.

    `left_out` entries have model, what and reason; `skipped` and `notes` have file and reason; `unmeasured` are lines.
    """

    title: str
    lead: str
    warnings: Sequence[Finding]
    groups: Sequence[tuple[str, Sequence[Finding]]]
    figures: Sequence[PageFigure]
    tables: Sequence[Table]
    layer_tables: Sequence[tuple[str, Sequence[Table]]]
    made: Sequence[Facts]
    left_out: Sequence[dict[str, Any]] = ()
    skipped: Sequence[dict[str, Any]] = ()
    notes: Sequence[dict[str, Any]] = ()
    unmeasured: Sequence[str] = ()
    versions: dict[str, str] = field(default_factory=dict)
    explorer: Section | None = None
    sections: Sequence[PageSection] = ()
    tables_note: str = (
        "The last layer measured, heads averaged; below a number its 95 % interval. Every number, layer and head is in "
        "results.csv."
    )
    findings_note: str = (
        "Ranges in brackets are 95 % intervals. Differences are stated only where intervals do not overlap, which is stricter "
        "than a test on the same pictures."
    )


def render(page: Page) -> str:
    """The whole page. Names from files are escaped: nothing in them becomes markup. A content security policy keeps every
    request inside the page, and lets no script run but the explorer's own."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["typeset"] = typeset  # returns plain text, which is escaped after it
    room = files("diffusionlens.pages")
    template = environment.from_string(room.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        style=Markup(room.joinpath("page.css").read_text(encoding="utf-8")),
        policy=_policy(page.explorer),
        groups=[(name, findings) for name, findings in page.groups if findings],
        drawn={figure.stem for figure in [*page.figures, *(f for part in page.sections for f in part.figures)]},
        maker=f"diffusionlens {page.versions.get('diffusionlens', '')}".strip(),
    )


def _policy(explorer: Section | None) -> str:
    allowed = "'none'"
    if explorer is not None:
        allowed = f"'sha256-{base64.b64encode(hashlib.sha256(explorer.script.encode()).digest()).decode()}'"
    own = f"img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
