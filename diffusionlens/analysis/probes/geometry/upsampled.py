"""Which class every pixel gets when coarse logits are brought to the label's size, counted without keeping the pixels.

Upsampled logits of hundreds of heads and millions of pixels are what probing would spend its time and memory on. On a CPU
they are made one row at a time, inside one core's cache, compiled by Numba; elsewhere torch makes them head by head. Both
are bilinear with pixel centres as `interpolate(align_corners=False)` has them, the lowest class wins a tie.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from diffusionlens.data.sample import IGNORE

INTERSECTION, PREDICTED, TRUE = range(3)


def tally_upsampled(logits: Tensor, target: Tensor) -> Tensor:
    """Counts of pixels per head and class after bilinear upsampling; pixels of target 255 are left out.

    Args:
        logits: [heads,classes,h,w] float32.
        target: [H,W] integers, classes or 255.

    Returns:
        [heads,3,classes] int64: pixels of the class that are predicted as such, predicted in all, true in all.
    """
    if logits.device.type == "cpu":
        return _by_numba(logits, target)
    return torch.stack(
        [count_classes(upsample(head[None], target.shape)[0].argmax(0), target, logits.shape[1]) for head in logits]
    )


def upsample(logits: Tensor, size: "torch.Size | tuple[int, int]") -> Tensor:
    """[n,C,h,w] to [n,C,*size], bilinear, pixel centres aligned."""
    return functional.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


def count_classes(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """[3,classes] int64 as in `tally_upsampled`, from the predicted and the true class of every pixel."""
    target = target.to(predicted.device)
    counted = target != IGNORE
    predicted, target = predicted[counted].long(), target[counted].long()
    hits = predicted[predicted == target]
    return torch.stack([torch.bincount(values, minlength=classes)[:classes] for values in (hits, predicted, target)])


def _by_numba(logits: Tensor, target: Tensor) -> Tensor:
    heads, classes, height, width = logits.shape
    rows, columns = target.shape
    top, bottom, down = _between(rows, height)
    left, right, across = _between(columns, width)
    coarse = np.ascontiguousarray(logits.detach().numpy(), dtype=np.float32)
    labels = np.ascontiguousarray(target.numpy().astype(np.uint8))
    counts = np.zeros((heads, 3, classes), np.int64)
    threads = min(torch.get_num_threads(), heads)
    bounds = [heads * part // threads for part in range(threads + 1)]

    def work(part: int) -> None:
        own = slice(bounds[part], bounds[part + 1])
        _count(coarse[own], labels, top, bottom, down, left, right, across, IGNORE, counts[own])

    if threads == 1:
        work(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    return torch.from_numpy(counts)


def _between(fine: int, coarse: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For every fine place the coarse ones below and above, and the share of the latter, as torch computes them."""
    place = np.maximum(
        (np.arange(fine, dtype=np.float32) + np.float32(0.5)) * np.float32(coarse / fine) - np.float32(0.5), 0
    )
    low = np.minimum(place.astype(np.int64), coarse - 1)
    return low, np.minimum(low + 1, coarse - 1), (place - low).astype(np.float32)


def _count_pixels(
    logits: Any,
    labels: Any,
    top: Any,
    bottom: Any,
    down: Any,
    left: Any,
    right: Any,
    across: Any,
    ignore: int,
    counts: Any,
) -> None:
    heads, classes, _, width = logits.shape
    rows, columns = labels.shape
    line = np.empty(width, np.float32)
    best = np.empty(columns, np.float32)
    winner = np.empty(columns, np.int64)
    for head in range(heads):
        for row in range(rows):
            share = down[row]
            for number in range(classes):
                for x in range(width):
                    above = logits[head, number, top[row], x]
                    line[x] = above + share * (logits[head, number, bottom[row], x] - above)
                if number == 0:
                    for x in range(columns):
                        before = line[left[x]]
                        best[x] = before + across[x] * (line[right[x]] - before)
                        winner[x] = 0
                else:
                    for x in range(columns):
                        before = line[left[x]]
                        value = before + across[x] * (line[right[x]] - before)
                        if value > best[x]:
                            best[x] = value
                            winner[x] = number
            for x in range(columns):
                label = labels[row, x]
                if label != ignore:
                    counts[head, 1, winner[x]] += 1
                    counts[head, 2, label] += 1
                    if winner[x] == label:
                        counts[head, 0, label] += 1


def _compiled() -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(_count_pixels)
    except RuntimeError:  # nowhere to keep the compiled code: compile anew in every process
        return numba.njit(nogil=True)(_count_pixels)


_count = _compiled()
