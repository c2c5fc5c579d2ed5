"""Sums over the keys of every attention row, from which all sparsity statistics follow. Exact, over every row.

The sums over two sets of keys add up: one pass over the patch keys, and a look at the few prefix keys, serve "all keys"
and every kind of key. Statistics describe the weights renormalised over the keys in question; a row without any weight
there gives NaN.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffusionlens.analysis.sparsity import compiled_rows
from diffusionlens.capture import AttentionBlock

TOP, SCALE = compiled_rows.TOP, compiled_rows.SCALE


@dataclass(frozen=True)
class RowSums:
    """Sums over `n` keys of every row, each [...]: of w, of sign(w), of w log w and of (w SCALE)^2; `best` the largest weights
    in ascending order, [...,TOP], zeros first when n < TOP. `a + b` are the sums over the keys of both."""

    n: int
    mass: Tensor
    support: Tensor
    w_log_w: Tensor
    squares: Tensor
    best: Tensor

    @classmethod
    def of(cls, weights: Tensor) -> "RowSums":
        """The sums of `weights` [...,n], non-negative."""
        smallest = torch.finfo(weights.dtype).tiny  # 0 log 0 = 0
        return cls(
            n=weights.shape[-1],
            mass=weights.sum(-1),
            # Weights are non-negative, so their signs count them; comparing and counting costs four times as much.
            support=weights.sign().sum(-1),
            w_log_w=(weights.clamp(min=smallest).log_() * weights).sum(-1),
            squares=torch.linalg.vector_norm(weights * SCALE, dim=-1).square(),
            best=_largest(weights),
        )

    def __add__(self, other: "RowSums") -> "RowSums":
        return RowSums(
            self.n + other.n,
            self.mass + other.mass,
            self.support + other.support,
            self.w_log_w + other.w_log_w,
            self.squares + other.squares,
            _largest(torch.cat([self.best, other.best], -1)),
        )

    def entropy(self) -> Tensor:
        """In nats, from 0 to the logarithm of the support.

        Where the weights are below float32's normal range (1e-38) they have a few bits left, and the entropy is between these
        bounds and no better than they are.
        """
        return (self.mass.log() - self.w_log_w / self.mass).clamp_(min=0).minimum(self.support.log())

    def hoyer(self) -> Tensor:
        """Hoyer sparsity (sqrt n - |w|_1/|w|_2) / (sqrt n - 1): 0 for equal weights, 1 for a single one.

        Source: P. O. Hoyer, JMLR 5 (2004). NaN for a single key.
        """
        root = self.n**0.5
        if self.n == 1:
            return torch.full_like(self.mass, torch.nan)
        return ((root - self.mass / (self.squares.sqrt() / SCALE)) / (root - 1)).clamp_(0, 1)

    def top_mass(self, k: int) -> Tensor:
        """Share of the k <= TOP largest weights."""
        return self.best[..., -k:].sum(-1) / self.mass


@dataclass(frozen=True)
class MapSums:
    """What one pass over a block of attention maps gives, for every row [b,heads,N]: the sums over the patch keys, the
    standard deviation of the logits over all keys, the weight on object patches, and, for patch queries, the sum of
    weight times distance."""

    patches: RowSums
    logit_std: Tensor
    on_objects: Tensor
    weighted_distance: Tensor


def map_sums(block: AttentionBlock, prefix: int, distance: Tensor, objects: Tensor) -> MapSums:
    """The sums of `block`, compiled on a CPU, in PyTorch elsewhere.

    Args:
        prefix: number of tokens before the first patch.
        distance: [P,P] between patches.
        objects: [b,P], 1 where a patch belongs to an object.
    """
    if block.weights.device.type == "cpu":
        sums = by_numba(block, prefix, distance, objects)
        if torch.isfinite(sums.logit_std).all():
            return sums
    return by_torch(block, prefix, distance, objects)  # also where a mask has made logits infinite


def by_torch(block: AttentionBlock, prefix: int, distance: Tensor, objects: Tensor) -> MapSums:
    """`map_sums` in plain PyTorch; logits of minus infinity are left out of the standard deviation."""
    to_patches = block.weights[..., prefix:]
    finite = torch.where(torch.isinf(block.logits), torch.nan, block.logits)
    centred = finite - finite.nanmean(-1, keepdim=True)
    far = torch.zeros_like(block.weights[..., 0])
    far[..., prefix:] = (to_patches[..., prefix:, :] * distance).sum(-1)
    return MapSums(
        RowSums.of(to_patches),
        centred.square().nanmean(-1).sqrt(),
        (to_patches @ objects[:, None, :, None].to(to_patches)).squeeze(-1),
        far,
    )


def by_numba(block: AttentionBlock, prefix: int, distance: Tensor, objects: Tensor) -> MapSums:
    """`map_sums` through the compiled rows."""
    shape = block.weights.shape
    weights, logits = (tensor.contiguous().flatten(0, 1) for tensor in (block.weights, block.logits))
    softmax = block.normalizer == "softmax"
    # For softmax log w = logit - log-sum-exp: the logits stand in for the logarithms.
    energies = logits if softmax else weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()
    arrays = (weights.numpy(), energies.numpy(), logits.numpy(), distance.numpy(), objects.to(distance).numpy())
    found, best = compiled_rows.sums_of_rows(*arrays, heads=shape[1], prefix=prefix)
    fields = torch.from_numpy(found).unflatten(0, shape[:2]).unbind(-1)
    mass, w_log_w = fields[compiled_rows.MASS], fields[compiled_rows.ENERGY]
    if softmax:
        log_sum_exp = fields[compiled_rows.LARGEST_LOGIT] - fields[compiled_rows.LARGEST_WEIGHT].log()
        w_log_w = w_log_w - log_sum_exp * mass
    patches = RowSums(
        n=shape[-1] - prefix,
        mass=mass,
        support=fields[compiled_rows.SUPPORT],
        w_log_w=w_log_w,
        squares=fields[compiled_rows.SQUARES],
        best=torch.from_numpy(best).unflatten(0, shape[:2]),
    )
    return MapSums(
        patches, fields[compiled_rows.LOGIT_STD], fields[compiled_rows.OBJECTS], fields[compiled_rows.DISTANCE]
    )


def _largest(weights: Tensor) -> Tensor:
    """The TOP largest of every row, ascending, zeros first where there are fewer."""
    missing = TOP - weights.shape[-1]
    if missing > 0:
        weights = torch.nn.functional.pad(weights, (missing, 0))
    if weights.device.type != "cpu":
        return weights.topk(TOP, -1).values.flip(-1)
    # NumPy's vectorised sort of whole rows takes a third of the time of torch.topk on a CPU.
    return torch.from_numpy(np.sort(weights.numpy(), -1)[..., -TOP:].copy())


def mean_of_defined(rows: Tensor) -> Tensor:
    """Mean over the last dimension; NaN does not count, and gives NaN only where nothing counts."""
    mean = rows.mean(-1)
    return rows.nanmean(-1) if mean.isnan().any() else mean  # nanmean takes four passes, and is hardly ever needed
