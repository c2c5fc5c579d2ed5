"""What the commands do, as Python functions of the same names and options."""

from typing import TYPE_CHECKING

from diffusionlens._lazy import attach
from diffusionlens.options import TRACKED

if TYPE_CHECKING:
    from diffusionlens.api.checking import check
    from diffusionlens.api.comparing import Compared, compare
    from diffusionlens.api.demonstration import Demonstration, demo
    from diffusionlens.api.measuring import Measured, measure
    from diffusionlens.api.probing import probe
    from diffusionlens.api.reporting import Reported, report
    from diffusionlens.api.tracking import Tracked, track
    from diffusionlens.api.training import train

__all__ = [
    "TRACKED",
    "Compared",
    "Demonstration",
    "Measured",
    "Reported",
    "Tracked",
    "check",
    "compare",
    "demo",
    "measure",
    "probe",
    "report",
    "track",
    "train",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Compared": "comparing",
        "Demonstration": "demonstration",
        "Measured": "measuring",
        "Reported": "reporting",
        "Tracked": "tracking",
        "check": "checking",
        "compare": "comparing",
        "demo": "demonstration",
        "measure": "measuring",
        "probe": "probing",
        "report": "reporting",
        "track": "tracking",
        "train": "training",
    },
)
