"""`check`: what would be used, and nothing measured."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffusionlens.analysis.device import refuse_too_large
from diffusionlens.analysis.measure import Progress, chosen_pictures, refuse_doubles
from diffusionlens.api.requests import check_numbers, silent
from diffusionlens.data import PictureSource, UnreadablePicture, open_data
from diffusionlens.data.sample import IGNORE
from diffusionlens.errors import InputError
from diffusionlens.models import load_model
from diffusionlens.models.checkpoints.own_models import list_moments
from diffusionlens.spec import parse_size


def check(
    models: Sequence[str],
    data: str | None = None,
    *,
    size: str | None = None,
    images: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What would be used: every model's layers, token layout, preprocessing and dropped keys; of the data, the counts of
    pictures and annotations and what can't be read (every picture is opened, or `images` of them).

    Returns:
        {"models": [...], "refused": [...], "data": {...} or None}, plain values. Of several models, those that can't be used
        stand in "refused", each with its reason.

    Raises:
        InputError: the only model, or the data, can't be used; two models have one name.
    """
    check_numbers(images=images, batch_size=None, workers=0, seed=0)
    described, refused = [], []
    for model in models:
        try:
            described.append(_check_model(model, size))
        except InputError as error:
            if len(models) == 1:
                raise
            refused.append({"model": model, "reason": str(error)})
    if described or not (refused or data is not None):
        refuse_doubles([entry["label"] for entry in described])
    found = None if data is None else _check_data(open_data(data, "--data"), images, progress)
    return {"models": described, "refused": refused, "data": found}


def _check_model(model: str, size: str | None) -> dict[str, Any]:
    backbone = load_model(model)
    wanted = backbone.default_size() if size is None else parse_size(size)
    refuse_too_large(backbone, wanted, torch.device("cpu"), attention=False)
    backbone.set_size(wanted)
    return {"label": backbone.label, **backbone.describe(), "checkpoints": list_moments(model)}


def _check_data(source: PictureSource, images: int | None, progress: Progress) -> dict[str, Any]:
    unreadable = [{"file": file, "reason": reason} for file, reason in source.skipped]
    notes: list[dict[str, str]] = []
    counts = {"boxes": 0, "crowds": 0, "difficult": 0, "masks": 0, "depth": 0, "labelled": 0, "without_objects": 0}
    annotated = {"mask": [0, 0], "depth": [0, 0]}
    depths: list[float] = []
    opened, sizes = 0, set()
    indices = chosen_pictures(len(source), images)
    for done, index in enumerate(indices, start=1):
        try:
            picture = source.open(index)
        except UnreadablePicture as error:
            unreadable.append({"file": error.file, "reason": error.reason})
            continue
        finally:
            progress(source.label, done, len(indices))
        opened += 1
        counts["boxes"] += len(picture.boxes)
        counts["crowds"] += int(picture.crowd.sum())
        counts["difficult"] += int(picture.difficult.sum())
        counts["masks"] += picture.mask is not None
        counts["depth"] += picture.depth is not None
        counts["labelled"] += picture.label is not None
        counts["without_objects"] += len(picture.boxes) == 0
        if picture.mask is not None:
            _add_up(annotated["mask"], picture.mask != IGNORE)
        if picture.depth is not None:
            read = picture.depth.isfinite()
            _add_up(annotated["depth"], read)
            depths += [bound.item() for bound in picture.depth[read].aminmax()] if read.any() else []
        sizes.add(picture.image.size)
        notes += [{"file": picture.name, "reason": note} for note in picture.notes]
    return {
        "label": source.label,
        "spec": source.spec,
        "pictures": len(source),
        "opened": opened,
        "provides": sorted(source.provides),
        "classes": len(source.classes),
        "mask_classes": len(source.mask_classes),
        **counts,
        "mask_share": _share(annotated["mask"]),
        "depth_share": _share(annotated["depth"]),
        "depth_range": [min(depths), max(depths)] if depths else None,
        "smallest": list(min(sizes)) if sizes else None,
        "largest": list(max(sizes)) if sizes else None,
        "unreadable": unreadable,
        "notes": notes,
    }


def _add_up(sums: list[int], usable: Tensor) -> None:
    sums[0] += int(usable.sum())
    sums[1] += usable.numel()


def _share(sums: list[int]) -> float | None:
    """Share of the pixels that can be used: of a class, or with a reading."""
    return sums[0] / sums[1] if sums[1] else None
