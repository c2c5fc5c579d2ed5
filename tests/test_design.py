"""docs/design.md lists the rooms of the package as they are, and the tests lie in the same rooms."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "diffusionlens"
FOLDERS = [
    folder
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE})
    if folder.name != "__pycache__"
]


def rooms() -> dict[str, str]:
    """What docs/design.md says of every folder, by its path in the package, and of the package's own modules, by "".

    Raises:
        AssertionError: a folder has two entries.
    """
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\ndiffusionlens/\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    found = {"": ""}
    way: list[str] = []
    for line in block.splitlines():
        indent, name, text = re.fullmatch(r"( *)(\w+/|[\w.]+\.py(?:,[ \w.,]+\.py)*|)(?: +(.*)|)", line).groups()  # type: ignore[union-attr]
        depth = len(indent) // 2
        if name.endswith("/"):
            way = [*way[: depth - 1], name[:-1]]
            assert "/".join(way) not in found, f"two entries of {'/'.join(way)}"
            found["/".join(way)] = text
        elif name and depth == 1:  # modules of no folder
            way = []
            found[""] += f" {name} {text}"
        else:  # an entry goes on
            found["/".join(way)] += f" {name} {text}"
    return found


def modules(text: str) -> list[str]:
    return re.findall(r"\b(?<![\w/])(\w+\.py)\b", text)


def test_every_folder_has_an_entry_and_every_entry_a_folder() -> None:
    assert set(rooms()) - {""} == {str(folder.relative_to(PACKAGE)) for folder in FOLDERS}


@pytest.mark.parametrize("folder", [PACKAGE, *FOLDERS], ids=lambda folder: folder.name)
def test_modules_are_named_once(folder: Path) -> None:
    """An entry names all modules of its folder, or says what there is one file of, and names the others."""
    path = "" if folder == PACKAGE else str(folder.relative_to(PACKAGE))
    text = rooms()[path]
    named = modules(text)
    there = {file.name for file in folder.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert len(set(named)) == len(named)
    assert set(named) <= there if "one file" in text else set(named) == there


def test_tests_lie_in_the_rooms_of_the_package() -> None:
    """Folders of tests are folders of the package; what disks and kills do to the whole is apart."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")} - {Path()}
    assert {folder for folder in folders if not (PACKAGE / folder / "__init__.py").is_file()} == {Path("faults")}
