"""What training heads takes of memory, estimated before the first picture: who asks for all of it dies without a word."""

from collections.abc import Sequence

import torch

from diffusionlens.analysis.probes.settings.recipe import DenseRecipe, Recipe, StreamedRecipe
from diffusionlens.errors import InputError
from diffusionlens.memory import free_memory

_FLOAT = 4  # bytes
_STATES = 5  # a head's weights, gradient, two moments, and the weights that batch norm is folded into
_MAPS = 4  # outputs, their softmax or expectation, and the gradients of both
_REFERENCE = 8  # bytes; the order of a stream's pictures is a list


def training_bytes(
    recipe: Recipe, kinds: int, outputs: int, width: int, layers: int, pictures: int, crop: tuple[int, int] | None
) -> int:
    """The least that training takes at a time: heads with their optimiser, and one step. `crop`: size of a stream's pictures."""
    heads = kinds * len(recipe.rates)
    streamed = isinstance(recipe, StreamedRecipe)
    batch = recipe.batch_size if streamed else min(recipe.batch_size, pictures)
    needed = _FLOAT * _STATES * heads * outputs * width * (layers if streamed else 1)
    if isinstance(recipe, DenseRecipe) and not getattr(recipe, "whole_map", False):
        needed += _FLOAT * batch * recipe.points * (_MAPS * heads * outputs + 2 * width)
    if isinstance(recipe, StreamedRecipe) and crop is not None:
        pixels = batch * crop[0] * crop[1]
        needed += _FLOAT * pixels * (3 + (_MAPS * outputs if recipe.whole_map else 0))
        needed += _REFERENCE * recipe.iterations * recipe.batch_size
    return needed


def refuse_too_much(needed: int, recipe: Recipe, device: torch.device) -> None:
    """
    Raises:
        InputError: there is not so much memory.
    """
    free = free_memory(device)
    if free is None or needed <= free:
        return
    names: Sequence[str] = ("points", "bins", "batch_size", "iterations")
    sizes = ", ".join(f"{name}={getattr(recipe, name)}" for name in names if hasattr(recipe, name))
    raise InputError(
        f"training heads with {sizes} and {len(recipe.rates)} rates takes {needed / 1e9:.1f} GB of memory at least, where "
        f"{free / 1e9:.1f} are free; give smaller numbers with --set"
    )
