"""The depth probe, DINOv2's lin. 1: features x4, a linear map to uniform bins, ReLU + 0.1, expectation over bin centres."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.probes.geometry.upsampled import upsample
from diffusionlens.analysis.probes.geometry.views import Padding, Views
from diffusionlens.errors import InputError

UPSAMPLING = 4
_FLOOR = 0.1  # added to the ReLU, so that a head without a positive logit gives the mean of the bins
_SIGLOSS_EPS = 1e-3
_SIGLOSS_MEAN = 0.15

EIGEN_CROP = (45, 471, 41, 601)
"""Rows and columns (from, to) of the 480 x 640 pixels of NYUv2 that are scored (Eigen et al., 2014)."""
EIGEN_SIZE = (480, 640)
GARG_CROP = (0.40810811, 0.99189189, 0.03594771, 0.96405229)
"""Rows and columns (from, to) as shares of KITTI's picture that are scored (Garg et al., 2016)."""


def crop_window(name: str, size: tuple[int, int]) -> tuple[slice, slice]:
    """The rows and columns of a depth map of `size` that are scored, by the crop's name: eigen, garg or none.

    Raises:
        InputError: Eigen's crop of a map that is not 480 x 640.
    """
    if name == "eigen":
        if size != EIGEN_SIZE:
            raise InputError(
                f"Eigen's crop is of depth maps of 480x640, and one here has {size[0]}x{size[1]}; say --set crop_name=none"
            )
        top, bottom, left, right = EIGEN_CROP
    elif name == "garg":
        top, bottom, left, right = (
            int(share * side) for share, side in zip(GARG_CROP, (size[0], size[0], size[1], size[1]), strict=True)
        )
    else:
        top, bottom, left, right = 0, size[0], 0, size[1]
    return slice(top, bottom), slice(left, right)


def expected_depth(logits: Tensor, min_depth: float, max_depth: float) -> Tensor:
    """Metres from logits [..., bins]: weights ReLU + 0.1, normalised, over bins evenly spaced from `min_depth` to `max_depth`."""
    bins = torch.linspace(min_depth, max_depth, logits.shape[-1], device=logits.device)
    weights = logits.relu() + _FLOOR
    return (weights @ bins) / weights.sum(-1)


def sigloss(predicted: Tensor, true: Tensor, *, warming_up: bool) -> Tensor:
    """sqrt(var(g) + 0.15 mean(g)^2) along the first dimension, g the difference of logarithms; only the mean term in warm-up.

    Args:
        predicted: [n, ...] metres. true: [n] metres, all valid.
    """
    gap = (predicted + _SIGLOSS_EPS).log() - (true.view(-1, *[1] * (predicted.dim() - 1)) + _SIGLOSS_EPS).log()
    value = _SIGLOSS_MEAN * gap.mean(0).square()
    if not warming_up and len(gap) > 1:
        value = value + gap.var(0)
    return (value + 1e-12).sqrt()  # the root of 0 has no gradient


class Depth:
    """What training and scoring need to know about this task; see `heads.training.DenseTask`."""

    name = "depth"
    metrics: tuple[str, ...] = ("rmse", "rmse_pooled", "abs_rel", "delta1", "abs_rel_pooled", "delta1_pooled")
    primary = "rmse"
    higher_is_better = False
    right_or_wrong = False
    ratios: tuple[str, ...] = ()
    batch_norm = False

    def __init__(self, bins: int, points: int, bounds: tuple[float, float], crop: str, warmup: int) -> None:
        self.outputs, self.count, self.bounds, self.crop, self.warmup = bins, points, bounds, crop, warmup

    def valid(self, target: Tensor) -> Tensor:
        """Which pixels have a reading within the range; NaN has none."""
        return (target > self.bounds[0]) & (target <= self.bounds[1])

    def labelled(self, target: Tensor) -> bool:
        return bool(self.valid(target).any())

    def points(
        self, targets: Sequence[Tensor], grid: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Random places of the x4 grid: rows and columns as shares [B,M], depth [B,M] at the pixel there."""
        height, width = (UPSAMPLING * side for side in grid)
        cell = torch.randint(height * width, (len(targets), self.count), generator=generator)
        rows, columns = (cell // width + 0.5) / height, (cell % width + 0.5) / width
        found = [
            target[(row * target.shape[0]).long(), (column * target.shape[1]).long()]
            for target, row, column in zip(targets, rows, columns, strict=True)
        ]
        return rows, columns, torch.stack(found)

    def point_loss(self, outputs: Tensor, labels: Tensor, step: int) -> Tensor:
        """SigLoss [K,R] of outputs [B,M,K,R,bins] over the valid depths [B,M] of the batch; 0 where there are none."""
        counted = self.valid(labels)
        if not counted.any():
            return outputs.sum((0, 1, 4)) * 0
        predicted = expected_depth(outputs[counted], *self.bounds)
        return sigloss(predicted, labels[counted], warming_up=step < self.warmup)

    def predict(self, outputs: Tensor, size: tuple[int, ...]) -> Tensor:
        """Metres [B,*size] from logits [B,h,w,bins]: logits x4, expectation, bilinear to `size`."""
        height, width = outputs.shape[1:3]
        fine = upsample(outputs.permute(0, 3, 1, 2), (UPSAMPLING * height, UPSAMPLING * width)).permute(0, 2, 3, 1)
        return upsample(expected_depth(fine, *self.bounds)[:, None], (size[0], size[1]))[:, 0]

    def map_loss(self, outputs: Tensor, targets: Tensor, padding: Padding, step: int) -> Tensor:
        """SigLoss of one head's outputs [B,h,w,bins] over every valid pixel of depth maps [B,H,W]."""
        counted = self.valid(targets)
        if not counted.any():
            return outputs.sum() * 0
        predicted = padding.cut(self.predict(outputs, padding.padded))
        return sigloss(predicted[counted], targets[counted], warming_up=step < self.warmup)

    def merged(self, outputs: Tensor, views: Views, size: tuple[int, int]) -> Tensor:
        """Metres [H,W] at every pixel of a picture of `size`, from one head's outputs [V,h,w,bins] on views of it."""
        metres = views.mean(self.predict(outputs, views.padding.padded)[:, None])
        return upsample(metres[None], size)[0, 0]

    def tally_map(self, predicted: Tensor, target: Tensor) -> Tensor:
        """One picture's sums [F] from metres and a depth map [H,W]."""
        return self.sums(predicted.cpu(), target)

    def predict_map(self, outputs: Tensor, size: tuple[int, int]) -> Tensor:
        """Metres [H,W], within the range, from one head's outputs [h,w,bins] on a whole picture."""
        return self.predict(outputs[None], size)[0].clamp(*self.bounds)

    def tally(self, outputs: Tensor, target: Tensor) -> Tensor:
        """One picture's sums [K,R,F] from outputs [h,w,K,R,bins] and a depth map [H,W]."""
        height, width, kinds, rates, bins = outputs.shape
        size = (target.shape[0], target.shape[1])
        heads = outputs.permute(2, 3, 0, 1, 4).reshape(kinds * rates, height, width, bins)
        rows = [self.sums(self.predict(head[None], size)[0].cpu(), target) for head in heads]
        return torch.stack(rows).view(kinds, rates, -1)

    def sums(self, predicted: Tensor, target: Tensor) -> Tensor:
        """The features of one picture that add up: counted pixels, squared and relative errors, pixels within 1.25; and whether
        the picture counts, its RMSE, mean relative error and share within 1.25."""
        window = crop_window(self.crop, (target.shape[0], target.shape[1]))
        predicted, target = predicted[window], target[window]
        counted = self.valid(target)
        there, wanted = predicted[counted].double().clamp(*self.bounds), target[counted].double()
        count = float(len(wanted))
        if not count:
            return torch.zeros(8, dtype=torch.float64)
        square, relative = (there - wanted).square().sum(), ((there - wanted).abs() / wanted).sum()
        close = (torch.maximum(there / wanted, wanted / there) < 1.25).sum().double()
        pooled = torch.stack([torch.tensor(count, dtype=torch.float64), square, relative, close])
        own = torch.stack(
            [torch.ones((), dtype=torch.float64), (square / count).sqrt(), relative / count, close / count]
        )
        return torch.cat([pooled, own])

    def scores(self, sums: Floats, whole: Floats | None = None) -> dict[str, Floats]:  # noqa: ARG002
        """Every metric from sums [..., 8]; NaN where nothing counts. Plain names are means over pictures of the picture's own
        value, `_pooled` ones are over all pixels together."""
        count, square, relative, close, pictures, rmse, abs_rel, delta1 = np.moveaxis(np.asarray(sums), -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "rmse": rmse / pictures,
                "rmse_pooled": np.sqrt(square / count),
                "abs_rel": abs_rel / pictures,
                "delta1": delta1 / pictures,
                "abs_rel_pooled": relative / count,
                "delta1_pooled": close / count,
            }

    def counts(self, sums: Floats) -> NDArray[np.bool_]:
        """Which pictures of sums [P, ..., 8] have a valid pixel."""
        return sums[..., 0] > 0
