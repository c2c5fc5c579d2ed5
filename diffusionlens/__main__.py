"""`python -m diffusionlens`, as `torchrun -m diffusionlens` needs it."""

from diffusionlens.cli import main

main()
