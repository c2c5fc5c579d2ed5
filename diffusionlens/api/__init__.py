"""What the commands do, as Python functions of the same names and options."""

from diffusionlens.api.checking import check
from diffusionlens.api.comparing import Compared, compare
from diffusionlens.api.demonstration import Demonstration, demo
from diffusionlens.api.measuring import Measured, measure
from diffusionlens.api.probing import probe
from diffusionlens.api.reporting import Reported, report
from diffusionlens.api.tracking import TRACKED, Tracked, track
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
