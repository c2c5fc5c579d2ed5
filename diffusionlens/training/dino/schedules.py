"""Schedules as pure functions of the global step (0 is the first), so that a resumed run needs no state for them.

DINO's, to the last step: a linear ramp reaches its end value in its last step (as numpy.linspace), a cosine would reach its
own in the step after the run's last.
"""

from math import cos, pi

from diffusionlens.errors import InputError


def linear(step: int, length: int, start: float, end: float) -> float:
    """`start` in step 0, `end` in step `length` - 1 and from then on; a ramp of one step is `start`. In epochs in place of
    steps it is DINO's ramp of the teacher's temperature, which is constant inside an epoch."""
    if step >= length:
        return end
    return start + (end - start) * step / (length - 1) if length > 1 else start


def cosine(step: int, total: int, start: float, end: float) -> float:
    """Half a cosine from `start` in step 0 to `end` in step `total`, where it stays."""
    return end + (start - end) * (1 + cos(pi * min(step, total) / total)) / 2


def warmup_cosine(step: int, total: int, warmup: int, peak: float, end: float, start: float = 0.0) -> float:
    """A linear ramp from `start` to `peak` in `warmup` of the `total` steps, then a cosine to `end`: the learning rate.

    Raises:
        InputError: the ramp is longer than the run.
    """
    check_ramp("the warm-up of the learning rate", warmup, total, "steps")
    if step < warmup:
        return linear(step, warmup, start, peak)
    return cosine(step - warmup, max(total - warmup, 1), peak, end)


def check_ramp(name: str, length: int, total: int, unit: str) -> None:
    """Raises:
    InputError: `length` is longer than `total`, the length of the run, both in `unit`.
    """
    if length > total:
        raise InputError(
            f"{name} takes {length} {unit}, the whole run {total}, so that it would never end; make the ramp shorter or the "
            f"run longer"
        )
