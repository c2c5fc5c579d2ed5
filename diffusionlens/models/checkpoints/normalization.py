"""Mean and std of the pictures' channels: the sets in common use, and what the user says of them."""

import re

from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Preprocessing
from diffusionlens.spec import Spec

IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = Preprocessing((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

NORMALIZATIONS = {"imagenet": IMAGENET, "half": HALF, "clip": CLIP}

_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")


def given_normalization(spec: Spec) -> Preprocessing | None:
    """What `?normalize=NAME`, or `?mean=` and `?std=` (a name or R,G,B each), say; None when nothing is said.

    Raises:
        InputError: no such name, not three numbers in range, or one of the two without the other.
    """
    query = spec.query
    if "normalize" in query:
        if "mean" in query or "std" in query:
            raise InputError(f"?normalize and ?mean, ?std in '{spec.text}' say the same; give one of them")
        if query["normalize"] not in NORMALIZATIONS:
            raise InputError(
                f"?normalize={query['normalize']} in '{spec.text}'; wanted one of {', '.join(NORMALIZATIONS)}, or "
                f"?mean=R,G,B&std=R,G,B"
            )
        return NORMALIZATIONS[query["normalize"]]
    if "mean" not in query and "std" not in query:
        return None
    found = {key: _channels(spec, key) for key in ("mean", "std") if key in query}
    if 0.0 in found.get("std", ()):
        raise InputError(f"?std={query['std']} in '{spec.text}'; pictures are divided by it: wanted more than 0")
    for one, other in (("mean", "std"), ("std", "mean")):
        if one not in query:
            raise InputError(f"?{other} without ?{one} in '{spec.text}'; give both")
    return Preprocessing(found["mean"], found["std"])


def _channels(spec: Spec, key: str) -> tuple[float, float, float]:
    text = spec.query[key]
    if text in NORMALIZATIONS:
        named = NORMALIZATIONS[text]
        return named.mean if key == "mean" else named.std
    parts = text.split(",")
    if len(parts) != 3 or not all(_NUMBER.fullmatch(part) and float(part) <= 1 for part in parts):
        raise InputError(
            f"?{key}={text} in '{spec.text}'; wanted three numbers from 0 to 1, as 0.5,0.5,0.5, or one of "
            f"{', '.join(NORMALIZATIONS)}"
        )
    return float(parts[0]), float(parts[1]), float(parts[2])
