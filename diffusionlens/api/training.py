"""`train`: a recipe and pictures to a training run, diagnosed on the way where that is asked for."""

import sys
from collections.abc import Sequence
from pathlib import Path

from diffusionlens.api.requests import settings_of
from diffusionlens.data import PictureSource, open_data
from diffusionlens.options import DIAGNOSE_IMAGES, TRACKED
from diffusionlens.pages.diagnosis import Diagnosis
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.train import Trained
from diffusionlens.training.train import train as run_training


def train(
    recipe: str | Path | Recipe,
    data: str | PictureSource | Sequence[str | PictureSource],
    out: Path | str,
    *,
    overlays: Sequence[str | Path] = (),
    settings: Sequence[str] = (),
    resume: bool = False,
    diagnose: str | PictureSource | None = None,
    diagnose_images: int | None = 256,
    diagnose_analyses: str = TRACKED,
) -> Trained | None:
    """Trains, and leaves a run directory (docs/training.md says what is in it).

    Args:
        recipe: a YAML file, the name of a shipped recipe, or a Recipe.
        data: a DATA string or a picture source, or several of them; labels and boxes are not looked at.
        out: the run directory to make, or with `resume` the one to go on with.
        overlays: recipes laid over the first.
        settings: "optimizer.lr=1e-3" and the like.
        resume: goes on with the same run from its last checkpoint; only `run.*` and `checkpoint.*` may differ.
        diagnose: held-out DATA on which every numbered checkpoint is measured; RUN/diagnostics is then what `track` makes.
        diagnose_images: at most so many pictures of it, evenly spaced.
        diagnose_analyses: as `analyses` of `measure`.

    Returns:
        How it ended; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    hook = None
    if diagnose_images is not None:
        DIAGNOSE_IMAGES.check(diagnose_images)
    if diagnose is not None:
        held_out = open_data(diagnose, "--diagnose") if isinstance(diagnose, str) else diagnose
        chosen = settings_of(diagnose_analyses, "all", diagnose_images, None, "crop", None, "auto", 0, 0)
        hook = Diagnosis(held_out, chosen, lambda line: print(line, file=sys.stderr, flush=True))
    return run_training(recipe, data, out, overlays=overlays, settings=settings, resume=resume, after_save=hook)
