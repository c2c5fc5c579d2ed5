"""Options that commands and functions share: whole numbers with their ranges, and a default. Light: `--help` waits for them."""

import re
import sys
from dataclasses import dataclass
from operator import index

from diffusionlens.errors import InputError

TRACKED = "pib,norms,sparsity,similarity"
"""The analyses whose numbers make curves over training."""


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
