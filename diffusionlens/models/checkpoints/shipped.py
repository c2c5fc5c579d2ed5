"""The small trained models that come with the package: `shipped:NAME` (docs/models.md says how they were made)."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from diffusionlens.errors import InputError


def shipped_models() -> dict[str, Path]:
    """Name -> weights file of the models that come with the package."""
    return {path.stem: path for path in sorted(Path(str(files("diffusionlens"))).glob("_models/*.safetensors"))}


def find_shipped(name: str) -> Path:
    """The weights file of `shipped:NAME`.

    Raises:
        InputError: no model of that name comes with the package.
    """
    shipped = shipped_models()
    if name not in shipped:
        near = get_close_matches(name, shipped, n=1)
        hint = f"; did you mean shipped:{near[0]}?" if near else ""
        raise InputError(f"no model 'shipped:{name}'; there are {', '.join(shipped) or 'none'}{hint}")
    return shipped[name]
