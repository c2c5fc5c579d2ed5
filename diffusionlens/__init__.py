"""diffusionlens: what happened to the patch tokens of a Vision Transformer?"""

import diffusionlens._scratch  # isort: skip  (before anything that writes temporary files)
import diffusionlens._environment  # noqa: F401  isort: skip  (before anything imports torch)

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from diffusionlens._lazy import attach
from diffusionlens.errors import InputError

if TYPE_CHECKING:
    from diffusionlens.api import check, compare, demo, measure, probe, report, track, train
    from diffusionlens.calibration import calibrate
    from diffusionlens.data import open_data
    from diffusionlens.models import load_model

try:
    __version__ = version("diffusionlens")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "InputError",
    "calibrate",
    "check",
    "compare",
    "demo",
    "load_model",
    "measure",
    "open_data",
    "probe",
    "report",
    "track",
    "train",
]

_COMMANDS = ("check", "compare", "demo", "measure", "probe", "report", "track", "train")
_ROOMS = (
    "analysis",
    "api",
    "attention",
    "calibration",
    "capture",
    "comparison",
    "data",
    "figures",
    "models",
    "plans",
    "training",
)
__getattr__, __dir__ = attach(
    __name__,
    dict.fromkeys(_COMMANDS, "api") | {"calibrate": "calibration", "open_data": "data", "load_model": "models"},
    _ROOMS,
)
