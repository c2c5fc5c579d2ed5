"""The segmentation probe: batch norm and a linear map, bilinear up to label size, cross-entropy, mIoU."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.probes.geometry.upsampled import (
    INTERSECTION,
    PREDICTED,
    TRUE,
    count_classes,
    tally_upsampled,
    upsample,
)
from diffusionlens.analysis.probes.geometry.views import Padding, Views, upsampled_mean
from diffusionlens.data.sample import IGNORE


class Segmentation:
    """What training and scoring need to know about this task; see `heads.training.DenseTask`. `classes`: how many there are."""

    name = "segmentation"
    metrics: tuple[str, ...] = ("miou", "pixel_accuracy")
    primary = "miou"
    higher_is_better = True
    right_or_wrong = False
    ratios: tuple[str, ...] = ("miou", "pixel_accuracy")
    batch_norm = True

    def __init__(self, classes: int, points: int) -> None:
        self.outputs, self.count = classes, points

    def labelled(self, target: Tensor) -> bool:
        return bool((target != IGNORE).any())

    def points(
        self, targets: Sequence[Tensor], grid: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Random pixels of every label map: rows and columns as shares [B,M], labels [B,M]."""
        rows, columns, labels = [], [], []
        for target in targets:
            height, width = target.shape
            pixel = torch.randint(height * width, (self.count,), generator=generator)
            row, column = pixel // width, pixel % width
            rows.append((row + 0.5) / height)
            columns.append((column + 0.5) / width)
            labels.append(target[row, column].long())
        return torch.stack(rows), torch.stack(columns), torch.stack(labels)

    def point_loss(self, outputs: Tensor, labels: Tensor, step: int) -> Tensor:
        """Mean cross-entropy [K,R] of outputs [B,M,K,R,C] over the labels [B,M] that are not ignored; 0 where all are."""
        counted = labels != IGNORE
        kinds, rates, classes = outputs.shape[2:]
        chosen = outputs[counted]
        wanted = labels[counted][:, None, None].expand(-1, kinds, rates)
        each = functional.cross_entropy(chosen.reshape(-1, classes), wanted.reshape(-1), reduction="none")
        return each.view(-1, kinds * rates).sum(0).view(kinds, rates) / max(len(chosen), 1)

    def map_loss(self, outputs: Tensor, targets: Tensor, padding: Padding, step: int) -> Tensor:
        """The same of one head's outputs [B,h,w,C] over every pixel of label maps [B,H,W]."""
        logits = padding.cut(upsample(outputs.permute(0, 3, 1, 2), padding.padded))
        if not (targets != IGNORE).any():
            return outputs.sum() * 0
        return functional.cross_entropy(logits, targets.long(), ignore_index=IGNORE)

    def merged(self, outputs: Tensor, views: Views, size: tuple[int, int]) -> Tensor:
        """The class [H,W] of every pixel of a picture of `size`, from one head's outputs [V,h,w,C] on views of it."""
        return upsample(upsampled_mean(outputs, views)[None], size)[0].argmax(0)

    def tally_map(self, predicted: Tensor, target: Tensor) -> Tensor:
        """One picture's sums [F] from the class of every pixel and a label map [H,W]."""
        return self.sums(count_classes(predicted, target, self.outputs)[None])[0]

    def predict_map(self, outputs: Tensor, size: tuple[int, int]) -> Tensor:
        """The class of every pixel [H,W] from one head's outputs [h,w,C] on a whole picture."""
        return upsample(outputs.permute(2, 0, 1)[None], size)[0].argmax(0)

    def tally(self, outputs: Tensor, target: Tensor) -> Tensor:
        """One picture's sums [K,R,F]: outputs [h,w,K,R,C] against a label map [H,W]."""
        height, width, kinds, rates, classes = outputs.shape
        logits = outputs.permute(2, 3, 4, 0, 1).reshape(kinds * rates, classes, height, width)
        return self.sums(tally_upsampled(logits.contiguous(), target)).view(kinds, rates, -1)

    def sums(self, counts: Tensor) -> Tensor:
        """[n,3,C] counts to the features that add up over pictures: intersection, union, true pixels, class by class."""
        union = counts[:, PREDICTED] + counts[:, TRUE] - counts[:, INTERSECTION]
        return torch.cat([counts[:, INTERSECTION], union, counts[:, TRUE]], 1).double()

    def scores(self, sums: Floats, whole: Floats | None = None) -> dict[str, Floats]:
        """Percent from sums [..., F] of pictures: mean over the classes that occur in truth or prediction, as mmseg's.

        A class that a resample has nothing of keeps its IoU of the `whole`. Left out, rare classes, which are the hard ones,
        would leave the mean higher than that of all pictures in nearly every resample.
        """
        hit, union, true = np.split(sums, 3, axis=-1)
        if whole is not None:
            hit_of_all, union_of_all, _ = np.split(whole, 3, axis=-1)
            hit, union = np.where(union > 0, hit, hit_of_all), np.where(union > 0, union, union_of_all)
        occurs = union > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            iou = np.where(occurs, hit / np.where(occurs, union, 1), 0).sum(-1) / occurs.sum(-1)
            accuracy = hit.sum(-1) / true.sum(-1)
        return {"miou": 100 * iou, "pixel_accuracy": 100 * accuracy}

    def counts(self, sums: Floats) -> NDArray[np.bool_]:
        """Which pictures of sums [P, ..., F] have a labelled pixel."""
        return sums[..., 2 * self.outputs :].sum(-1) > 0
