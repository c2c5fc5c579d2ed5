"""docs/reports.md lists every key of a plan, with the kinds of sections that have it, and says which must be there."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from diffusionlens.plans.schema import (
    Column,
    ExplorerSection,
    MeasureSection,
    Plan,
    ProbeSection,
    Role,
    TableSection,
    TrackSection,
)

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
KINDS = {
    "measure": MeasureSection,
    "probe": ProbeSection,
    "track": TrackSection,
    "explorer": ExplorerSection,
    "table": TableSection,
}


def rows(of: str) -> list[list[str]]:
    """Cells of the table "key of a ..."."""
    (table,) = re.findall(rf"^\| key of a {of} \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]


def keys(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def compare(model: type[BaseModel], said: list[tuple[str, str]]) -> None:
    named = [key for cell, _ in said for key in keys(cell)]
    assert sorted(named) == sorted(model.model_fields)
    wanted = {key for cell, text in said if text.startswith("wanted") for key in keys(cell)}
    assert wanted == {key for key, field in model.model_fields.items() if field.is_required()}


@pytest.mark.parametrize(("of", "model"), [("plan", Plan), ("role", Role), ("column", Column)])
def test_keys(of: str, model: type[BaseModel]) -> None:
    said = [(cell, text) for cell, text in rows(of) if cell != "`extends`"]  # which `documents` has taken away
    compare(model, said)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_sections(kind: str) -> None:
    def has(kinds: str) -> bool:
        return kinds in ("", "all") or (kinds == "all but table" and kind != "table") or kind in kinds.split(", ")

    compare(KINDS[kind], [(cell, text) for cell, kinds, text in rows("section") if has(kinds)])
