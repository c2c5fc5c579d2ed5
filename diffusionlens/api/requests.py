"""What the functions share: numbers of a request checked, settings made from them, and the command that was given."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from diffusionlens.analysis.registry import parse_analyses, parse_options
from diffusionlens.analysis.run import Settings
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.errors import InputError
from diffusionlens.spec import parse_size


@dataclass(frozen=True)
class Whole:
    """An option that takes a whole number from `low` to `high`."""

    option: str
    low: int
    high: int = sys.maxsize

    def parse(self, text: str | int) -> int:
        """The number that is written in plain digits ("²" is none).

        Raises:
            InputError: it is none, or out of the range.
        """
        if isinstance(text, int):  # a default
            return text
        if not re.fullmatch("[+-]?[0-9]{1,1000}", text.strip(), re.ASCII):
            raise self._refusal(text)
        return self.check(int(text))

    def check(self, number: int) -> int:
        """
        Raises:
            InputError: no whole number (a Python program may give anything), or out of the range.
        """
        try:
            whole = index(number)
        except TypeError:
            raise self._refusal(number) from None
        if not self.low <= whole <= self.high:
            raise self._refusal(number)
        return whole

    def _refusal(self, given: object) -> InputError:
        upper = "" if self.high == sys.maxsize else f" to {self.high}"
        return InputError(f"{self.option} {given}; wanted a whole number from {self.low}{upper}")


IMAGES = Whole("--images", 1)
BATCH_SIZE = Whole("--batch-size", 1)
WORKERS = Whole("--workers", 0, 1024)  # each is a process; beyond this a machine runs out of those, and of open files
SEED = Whole("--seed", 0, 2**32 - 1)  # scikit-learn takes no more
EXPLORE = Whole("--explore", 0)
CHECKPOINTS = Whole("--checkpoints", 1)
SEEDS = Whole("--seeds", 1, 100)
DIAGNOSE_IMAGES = Whole("--diagnose-images", 1)
ROUNDS = Whole("--rounds", 1)
STEPS = Whole("--steps", 1)
THREADS = Whole("--threads", 1, 1024)


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
