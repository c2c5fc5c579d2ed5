"""The command `diffusionlens`: one file a command, thin."""

from diffusionlens.cli.main import main

__all__ = ["main"]
