"""Imports: every module can be had, and nothing that lies around is taken for a part of the program."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import diffusionlens


@pytest.mark.slow
def test_every_module_is_importable() -> None:
    names = [
        found.name for found in walk_packages(diffusionlens.__path__, "diffusionlens.") if "__main__" not in found.name
    ]
    assert len(names) > 100
    for name in names:
        if ".triton" in name:
            pytest.importorskip("triton")
        import_module(name)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["measure", "--help"], 0),
        (["bench", "train", "--help"], 0),
        (["measure", "a", "--images", "x"], 2),
        (["report", "paper", "--sise", "3"], 2),
    ],
)
def test_help_and_mistyped_options_wait_for_nothing(arguments: list[str], status: int) -> None:
    """torch and what builds on it take seconds to import."""
    script = (
        f"import sys; sys.argv = ['diffusionlens', *{arguments}]\nfrom diffusionlens.cli import main\ntry:\n    main()\n"
        "except SystemExit as left:\n    print('left', left.code, *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    said, code, *modules = done.stdout.splitlines()[-1].split()
    assert (said, code) == ("left", str(status))
    heavy = {
        "torch",
        "timm",
        "torchvision",
        "torchmetrics",
        "sklearn",
        "scipy",
        "numpy",
        "pandas",
        "matplotlib",
        "numba",
        "PIL",
    }
    assert not heavy & set(modules)
    assert "typer" in modules


def test_every_name_can_be_had() -> None:
    """They come when they are asked for."""
    for package in (diffusionlens, diffusionlens.api):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name).__class__ is not type(sys)
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = package.nonsense


@pytest.mark.slow
def test_runs_beside_modules_of_any_name(tmp_path: Path) -> None:
    """`python -m` looks into the folder one is in first; all that the program has lies under its own name."""
    room = Path(diffusionlens.__file__).parent
    names = {path.stem for path in room.rglob("*.py")} | {"utils", "dino", "vision_transformer", "train", "eval"}
    taken = set(sys.stdlib_module_names) | {"__init__", "__main__"}
    for name in names - taken:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the folder was imported')\n")
    environment = os.environ | {"PYTHONPATH": str(room.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "diffusionlens", "check", "timm:vit_tiny_patch16_224?pretrained=false&img_size=64"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4 x 4 patches" in done.stdout
