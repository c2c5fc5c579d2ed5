"""What leakage, spread, provenance and discovery let one say, no stronger than their intervals."""

from typing import Any

import pandas as pd

from diffusionlens.pages.numbers import percent_with_interval, pictures, short, with_interval
from diffusionlens.pages.sentences import Numbers


def leakage_sentence(own: Numbers) -> str | None:
    """Leakage at the last layer, and the layer from which on it is told from zero."""
    series = own.series("diffusion", "leakage")
    full, erased = own.last("diffusion", "leakage_full"), own.last("diffusion", "leakage_erased")
    chance = own.last("diffusion", "leakage_chance")
    if not series or full is None or erased is None or chance is None:
        return None
    last = series[-1]
    text = (
        f"In layer {last.layer} a linear probe reads the label from background patches alone in {with_interval(full)} % of "
        f"{pictures(last.n)}, and in {with_interval(erased)} % when the object is erased (naming the most frequent label: "
        f"{short(chance.value)} %): leakage is {with_interval(last)} points"
    )
    if last.value == last.low == last.high == 0:
        return f"{text}: the background's tokens are the same with the object and without."
    if pd.isna(last.low) or last.low <= 0 <= last.high:
        return f"{text}, which can't be told from zero with so many pictures; that is not the same as none."
    if last.value < 0:
        return f"{text}. Below zero: the erased pictures are easier to read, so the filled boxes tell something themselves."
    start = _start(series)
    where = "in every layer measured" if start == series[0].layer else f"from layer {start} on"
    return f"{text}, above zero {where}."


def _start(series: list[Any]) -> int:
    """The first layer from which on every interval lies above zero; the last layer's must."""
    start = series[-1].layer
    for row in reversed(series):
        if not row.low > 0:
            break
        start = row.layer
    return int(start)


def spread_sentence(own: Numbers) -> str | None:
    """Spread at the last layer, near and far, and where it has reached half of that."""
    series = own.series("diffusion", "spread", "all")
    if not series:
        return None
    last = series[-1]
    text = (
        f"In layer {last.layer}, exchanging the object moves the patches around it by {with_interval(last)} of what "
        f"exchanging the whole picture moves them"
    )
    near, far = own.last("diffusion", "spread", "ring 1"), own.last("diffusion", "spread", "ring 5+")
    if near is not None and far is not None and near.layer == far.layer == last.layer:
        text += f" ({with_interval(near)} next to the box, {with_interval(far)} five patches away and more)"
    parts = own.last("diffusion", "spread_object", "all"), own.last("diffusion", "spread_picture", "all")
    if parts[0] is not None and parts[1] is not None:
        text += f": {short(parts[0].value)} of {short(parts[1].value)}, as 1 - cosine"
    if last.value <= 0 or (not pd.isna(last.low) and last.low <= 0):
        return f"{text}, which can't be told from nothing."
    half = next(row.layer for row in series if row.value >= last.value / 2)
    top = max(series, key=lambda row: row.value)
    text += f"; half of this spread is reached in layer {half}"
    if top.layer != last.layer and not pd.isna(top.low) and top.low > last.high:
        text += f", and layer {top.layer} has more, {with_interval(top)}"
    return text + "."


def provenance_sentence(own: Numbers) -> str | None:
    """Where background patches have their likeness to CLS from, against the area of each region."""
    parts = []
    last = None
    for region, name in (("self", "its own place"), ("object", "the objects' boxes"), ("rest", "the rest")):
        last = own.last("diffusion", f"provenance_{region}", "background")
        area = own.last("diffusion", f"provenance_{region}_area", "background")
        if last is None or area is None:
            return None
        parts.append(f"{percent_with_interval(last)} from {name} ({short(100 * area.value)} % of the pixels)")
    assert last is not None
    text = f"In layer {last.layer} a background patch has its likeness to CLS to {parts[0]}, {parts[1]} and {parts[2]}"
    gap = own.last("diffusion", "provenance_gap", "background")
    if gap is not None:
        text += f", by Integrated Gradients with a completeness error of {short(100 * gap.value)} %"
    return f"{text}, over {pictures(last.n)}."


UNCUT = 10.0  # percent of pictures from which CorLoc is taken to describe the features, not objects
EMPTY_BOXES = {
    "corloc_lost": ("lost_whole", "LOST's box is the whole picture"),
    "corloc_tokencut": ("uncut", "all patches are alike and nothing can be cut"),
}
"""CorLoc -> the share of pictures in which the way finds nothing, and in words."""


def discovery_sentence(own: Numbers) -> str | None:
    """CorLoc of both ways, and the attention's outline."""
    lost, tokencut = own.last("discovery", "corloc_lost"), own.last("discovery", "corloc_tokencut")
    jaccard = own.last("discovery", "jaccard_attention")
    parts = []
    if lost is not None and tokencut is not None:
        parts.append(
            f"one box without labels meets an object (IoU of a half) in {with_interval(lost)} % of {pictures(lost.n)} by LOST "
            f"and in {with_interval(tokencut)} % by TokenCut"
        )
        whole, uncut = own.last("discovery", "corloc_whole"), own.last("discovery", "uncut")
        taken = own.last("discovery", "lost_whole")
        if whole is not None:
            parts.append(f"the whole picture as the box does in {short(whole.value)} %")
        if taken is not None and taken.value > UNCUT:
            parts.append(f"in {with_interval(taken)} % LOST's box is the whole picture, which finds nothing")
        if uncut is not None and uncut.value > UNCUT:
            parts.append(
                f"in {with_interval(uncut)} % all patches are alike by these features and nothing can be cut, so that CorLoc "
                f"is no score of the model here (see discovery.features)"
            )
    if jaccard is not None:
        parts.append(f"the best head's attention outlines objects with a Jaccard index of {with_interval(jaccard)} %")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else None
