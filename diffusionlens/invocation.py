"""How the program was called, for manifests."""

import shlex
import sys
from pathlib import Path


def command_line() -> str:
    """The command as one could type it again, or "" where Python code called: `diffusionlens ...`, however it was started."""
    if not sys.argv:
        return ""
    program = Path(sys.argv[0])
    names = (program.stem, program.parent.name if program.name == "__main__.py" else "")
    return shlex.join(["diffusionlens", *sys.argv[1:]]) if "diffusionlens" in names else ""
