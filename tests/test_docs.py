"""Code that the documentation shows runs as it stands."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(page, block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
    if "# not run" not in block
    and "# needs: runs/" not in block  # tests/training/test_opens.py runs those on real runs
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_python_runs(page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {})


def test_links_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _messages() -> list[str]:
    """Every text of the program, with a NUL for what it fills in."""
    texts = []
    for path in (ROOT / "diffusionlens").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_errors_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    phrases = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(phrases) > 20
    messages = _messages()
    for phrase in phrases:
        wanted = re.compile(".*".join(map(re.escape, phrase.split(" … "))), re.DOTALL)
        assert any(wanted.search(text) for text in messages), f"no message says '{phrase}'"
