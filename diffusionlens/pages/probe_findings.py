"""What probes let one say, no stronger than their intervals and controls."""

import pandas as pd

from diffusionlens.pages.numbers import overlap, short, with_interval
from diffusionlens.pages.sentences import Numbers

_SCORES = {
    "segmentation": ("miou", "mIoU", " %"),
    "depth": ("rmse", "an RMSE of", " m"),
    "classification": ("linear_top1", "a linear accuracy of", " %"),
}


def probe_sentence(own: Numbers) -> str | None:
    """The score of the patches and of CLS beside them in the last layer, and the layer that does best."""
    for task, (metric, name, unit) in _SCORES.items():
        last = own.last(task, metric, "patch")
        if last is None:
            continue
        text = f"Heads on the patches of layer {last.layer} reach {name} {with_interval(last)}{unit}"
        both = own.last(task, metric, "cls+patch")
        if both is not None:
            text += f", with CLS beside them {with_interval(both)}{unit}"
        blocks = own.series(task, metric, "patch")
        if len(blocks) == 1:
            return text + "."
        best = (min if task == "depth" else max)(blocks, key=lambda row: row.value)
        if best.layer == last.layer:
            return text + ". No layer's patches do better."
        told = "" if overlap(best, last) else ", and the intervals don't meet"
        return f"{text}. The best patches are those of layer {best.layer}: {with_interval(best)}{unit}{told}."
    return None


def protocol_sentence(own: Numbers) -> str | None:
    """The scores of the published linear classifiers."""
    told = []
    for blocks in (1, 4):
        for pool, name in (("cls", "CLS"), ("cls+mean", "CLS with the mean patch")):
            row = own.last("classification", "linear_top1", f"{pool} blocks={blocks}")
            if row is not None:
                told.append(f"{with_interval(row)} % from {name} of the last {'block' if blocks == 1 else '4 blocks'}")
    return f"Linear heads reach {'; '.join(told)}." if told else None


def _unit(own: Numbers) -> str:
    """Of a gain, which is better where it is positive."""
    units = {"segmentation": " points of mIoU", "classification": " points of accuracy", "depth": " m (of lower RMSE)"}
    there = [unit for task, unit in units.items() if own.measured(task)]
    return there[0] if len(there) == 1 else ""


def gain_sentence(own: Numbers) -> str | None:
    """What CLS adds in the last layer, told only where seeds, pictures and controls agree."""
    gain, pictures = (own.last("complementarity", metric, "cls+patch") for metric in ("gain", "gain_pictures"))
    if gain is None or pictures is None:
        return None
    over = f"interval over {gain.n} trainings" if gain.n > 1 else "one training, which gives no interval"
    text = f"In layer {gain.layer}, CLS adds {with_interval(gain)}{_unit(own)} to the patches ({over})"
    if gain.n == 1:
        return f"{text}; whether another training says the same can't be told (--seeds)."
    sure = all(not pd.isna(row.low) and (row.low > 0 or row.high < 0) for row in (gain, pictures))
    if not sure:
        return f"{text}; over trainings and over pictures together, that can't be told from nothing."
    controls = [own.last("complementarity", "gain", token) for token in ("shuffled_cls+patch", "mean+patch")]
    known = [row for row in controls if row is not None]
    if not known:
        return f"{text}; no control was asked for."
    shown = ", ".join(f"{short(row.value)} for {row.token}" for row in known)
    if any(overlap(gain, row) for row in known):
        return f"{text}; controls: {shown}, which can't all be told from it."
    more = all(row.value < gain.value for row in known)
    return f"{text}; controls: {shown}" + (
        "." if more else ": not what CLS knows, but what stands there at all, makes the score."
    )
