"""Token kinds: what a head reads, and the controls that tell a gain from a matter of width."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from diffusionlens.errors import InputError

KINDS = ("patch", "cls", "cls+patch", "shuffled_cls+patch", "mean+patch")
"""In the order in which they are reported. `cls` is CLS repeated at every position; the last two are controls: another
picture's CLS, and the mean of the picture's own patches."""

SIDE = {
    "patch": None,
    "cls": "cls",
    "cls+patch": "cls",
    "shuffled_cls+patch": "shuffled_cls",
    "mean+patch": "mean",
}
"""Which vector of the whole picture a kind reads beside, or in place of, the patches."""


def has_patches(kind: str) -> bool:
    return kind != "cls"


def parse_kinds(text: str) -> tuple[str, ...]:
    """`all`, or kinds separated by commas, in the order of `KINDS`.

    Raises:
        InputError: an unknown kind, or none.
    """
    if text.strip() == "all":
        return KINDS
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            near = get_close_matches(name, KINDS, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(f"--tokens: '{name}' is no token kind (known: {', '.join(KINDS)}){hint}")
    if not names:
        raise InputError(f"--tokens names no token kind; wanted all, or some of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in names)


@dataclass(frozen=True)
class LayerTokens:
    """One layer's tokens of a batch, float32: `cls` and `shuffled_cls` (another picture's) [B,D] or None, `patches`
    [B,h,w,D]."""

    cls: Tensor | None
    shuffled_cls: Tensor | None
    patches: Tensor

    def side(self, name: str) -> Tensor:
        """The vector [B,D] that stands beside the patches: "cls", "shuffled_cls" or "mean"."""
        if name == "mean":
            return self.patches.mean((1, 2))
        vector: Tensor | None = getattr(self, name)
        assert vector is not None, f"{name} was not provided"
        return vector


def with_partner(cls: Tensor | None, patches: Tensor) -> LayerTokens:
    """Tokens of a shuffled batch, whose pictures lend each other their CLS: each has the one of the picture before it."""
    return LayerTokens(cls, None if cls is None else cls.roll(1, 0), patches)


def partners(count: int, seed: int) -> list[int]:
    """For every picture another one, whose CLS it gets: the one before it in a seeded random order, so that neighbours in a
    video or in a class folder don't lend each other what they share. [0] for a single picture."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    before = {picture: order[place - 1] for place, picture in enumerate(order)}
    return [before[picture] for picture in range(count)]


def usable_kinds(kinds: Sequence[str], *, has_cls: bool, pictures: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """The kinds that a model and so many pictures allow, and why each other one is left out."""
    left_out: dict[str, str] = {}
    for kind in kinds:
        if not has_cls and "cls" in kind:
            left_out[kind] = "the model has no CLS token"
        elif kind == "shuffled_cls+patch" and pictures < 2:
            left_out[kind] = "one picture has no other one to take the CLS from"
    return tuple(kind for kind in kinds if kind not in left_out), left_out
