"""The command of a manifest can be typed again."""

import shlex

import pytest

from diffusionlens.invocation import command_line


@pytest.mark.parametrize(
    "program",
    ["/usr/bin/diffusionlens", "diffusionlens", "C:/Scripts/diffusionlens.exe", "/x/diffusionlens/__main__.py"],
)
def test_every_way_to_start_it(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["measure", "a=my model.pth", "--data", "voc:/d?split=val&n=3", "--set", "pib.hit=center"]
    monkeypatch.setattr("sys.argv", [program, *asked])
    assert shlex.split(command_line()) == ["diffusionlens", *asked]


@pytest.mark.parametrize(
    "argv", [[], ["-c"], ["/home/me/diffusionlens/my_script.py", "x"], ["/usr/bin/pytest", "diffusionlens"]]
)
def test_python_code_is_no_command(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert command_line() == ""
