"""Every case of tests/cases.md is answered: the tests and the headings that it names are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "tests" / "cases.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines() if re.match(r"\| [A-Za-z]", line)
]
CASES = [row for row in ROWS if row[0] != "issue"]


def functions_of(path: Path) -> set[str]:
    """Functions that pytest would collect."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def headings_of(path: Path) -> set[str]:
    """Anchors of a page, made from its headings as Markdown viewers do; what looks like one in a block of code is none."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_case_has_an_answer_that_is_there() -> None:
    assert len(CASES) > 70
    for issue, asked, answer in CASES:
        named = answer.split(", ")
        assert asked, issue
        assert all(re.fullmatch(r"`[^`]+`", one) for one in named), issue
        for one in named:
            path, test, heading = re.fullmatch(r"`([^:#]+)(?:::(\w+)|#([\w-]+))`", one).groups()  # type: ignore[union-attr]
            there = functions_of(ROOT / path) if test else headings_of(ROOT / path)
            assert (test or heading) in there, f"{issue}: {one}"


def test_no_case_stands_twice() -> None:
    issues = [issue for issue, *_ in CASES]
    assert len(set(issues)) == len(issues)
