"""Code that the documentation shows runs as it stands, and its references hold all that there is."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from diffusionlens.analysis.probes.settings.presets import _BY_PRESET
from diffusionlens.analysis.registry import DIAGNOSTICS
from diffusionlens.cli.main import app

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


def _section(page: Path, heading: str) -> str:
    """What stands under a heading of the second rank."""
    (text,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return text


def _commands(command: Any = None, way: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command of the program by its words, as "bench train"."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        return {" ".join(way): command}
    return {
        name: leaf for word, below in command.commands.items() for name, leaf in _commands(below, (*way, word)).items()
    }


@pytest.mark.parametrize("name", _commands())
def test_options_of_commands(name: str) -> None:
    """A command's section holds its options, each with its default, and no other."""
    rows = re.findall(r"^\| (`--.*?) \| (.*?) ?\|", _section(ROOT / "docs" / "commands.md", name), re.MULTILINE)
    expected = []
    for option in _commands()[name].params:
        names = [*option.opts, *option.secondary_opts]
        if not names[0].startswith("--"):
            continue
        default: Any = option.default
        if option.secondary_opts:  # a switch: which of its two names holds
            default = names[0] if default else names[1]
        nothing = default is None or default is False
        shown = "wanted" if option.required else "" if nothing else f"`{default}`"
        expected.append((", ".join(f"`{one}`" for one in names), shown))
    assert rows == expected


@pytest.mark.parametrize("name", sorted(set(DIAGNOSTICS) - {"explorer"}))
def test_options_of_analyses(name: str) -> None:
    """An analysis's section names its options, as `pib.hit` or behind the word "Options" as `hit`."""
    page = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
    (heading,) = re.findall(rf"^## ({name}: .*)$", page, re.MULTILINE)
    text = _section(ROOT / "docs" / "definitions.md", heading)
    behind = text.partition("Options:")[2]
    for field in DIAGNOSTICS[name].options_type.model_fields:
        named = re.search(rf"`{name}\.{field}`", text) or re.search(rf"`{field}`", behind)
        assert named, f"docs/definitions.md lacks {name}.{field}"


def test_options_of_the_explorer() -> None:
    page = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
    for field in set(DIAGNOSTICS["explorer"].options_type.model_fields) - {"pictures"}:  # which is `--explore`
        assert f"--set explorer.{field}=" in page
    assert "--explore 8" in page


def test_settings_of_probes() -> None:
    """The table of settings has every key of every preset, once, and no other."""
    cells = re.findall(r"^\| (`.*?) \|", _section(ROOT / "docs" / "probing.md", "Settings"), re.MULTILINE)
    named = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    recipes = [recipe for tasks in _BY_PRESET.values() for recipe in tasks.values()]
    assert sorted(named) == sorted({key for recipe in recipes for key in type(recipe).model_fields})
