"""What the functions share: numbers of a request checked, and settings made from them."""

from collections.abc import Sequence

from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.analysis.run import Settings
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.errors import InputError
from diffusionlens.options import BATCH_SIZE, EXPLORE, IMAGES, SEED, WORKERS
from diffusionlens.spec import parse_size


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
    EXPLORE.check(explore)
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
    """Refuses numbers out of their range."""
    for kind, number in ((IMAGES, images), (BATCH_SIZE, batch_size), (WORKERS, workers), (SEED, seed)):
        if number is not None:
            kind.check(number)
