"""What the functions share: numbers of a request checked, settings made from them, and the command that was given."""

import sys
from collections.abc import Sequence

from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.analysis.run import Settings
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.errors import InputError
from diffusionlens.spec import parse_size

_MOST_WORKERS = 1024  # each is a process; beyond this a machine runs out of those, and of open files


def silent(what: str, done: int, total: int) -> None:
    """Progress for nobody."""


def settings_of(
    analyses: str,
    layers: str,
    images: int | None,
    size: str | None,
    fit: str,
    batch_size: int | None,
    device: str,
    workers: int,
    seed: int,
    options: Sequence[str] = (),
    explore: int = 0,
) -> Settings:
    """`explore` pictures in the token explorer is the option "explorer.pictures"; any at all puts the explorer among the
    analyses."""
    check_numbers(images=images, batch_size=batch_size, workers=workers, seed=seed)
    if explore < 0:
        raise InputError(f"--explore {explore}; wanted a whole number from 0")
    chosen = parse_options([*options, *([f"explorer.pictures={explore}"] if explore else [])])
    exploring = getattr(chosen["explorer"], "pictures", 0) > 0
    return Settings(
        analyses=(*parse_analyses(analyses), *(["explorer"] if exploring else [])),
        options=chosen,
        layers=layers,
        images=images,
        size=None if size is None else parse_size(size),
        fit=_fit(fit),
        batch_size=batch_size,
        device=device,
        workers=workers,
        seed=seed,
    )


def _fit(text: str) -> Fit:
    if text not in ("crop", "squash", "pad"):
        raise InputError(f"--fit {text}; wanted crop, squash or pad")
    return text  # type: ignore[return-value]


def check_numbers(images: int | None, batch_size: int | None, workers: int, seed: int) -> None:
    for name, number, low, high in (
        ("--images", images, 1, sys.maxsize),
        ("--batch-size", batch_size, 1, sys.maxsize),
        ("--workers", workers, 0, _MOST_WORKERS),
        ("--seed", seed, 0, 2**32 - 1),  # scikit-learn takes no more
    ):
        if number is not None and not low <= number <= high:
            upper = "" if high == sys.maxsize else f" to {high}"
            raise InputError(f"{name} {number}; wanted a whole number from {low}{upper}")
