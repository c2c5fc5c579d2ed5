"""`pca`: principal components of patch tokens as RGB maps, fitted jointly over the sample pictures of one model.

The way of DINOv2's and the paper's figures: normed patch tokens, three components, 2nd to 98th percentile to 0..1. The
sign rule makes the map independent of the solver's arbitrary signs: flipping a component changes nothing.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusionlens.analysis.diagnostic import Column, Context, Diagnostic, Options
from diffusionlens.capture import Stream, Trace
from diffusionlens.data.sample import Batch
from diffusionlens.results import Row

Floats = NDArray[np.float64]
COMPONENTS = 3


class PcaOptions(Options):
    """`foreground`: fit the components on the patches whose first component marks them as foreground, after DINOv2; the
    rest of the map stays black. `tokens`: normed or raw."""

    foreground: bool = False
    tokens: Stream = "normed"


class Pca(Diagnostic):
    """explained_variance: share of the variance of the sample pictures' patch tokens in components 1..3 (token)."""

    name = "pca"
    options_type = PcaOptions
    options: PcaOptions
    columns: Sequence[Column] = ()

    def __init__(self, context: Context, options: PcaOptions) -> None:
        super().__init__(context, options)
        self.add_state("picture", default=[], dist_reduce_fx="cat")
        self.add_state("patches", default=[], dist_reduce_fx="cat")
        self._maps: dict[int, tuple[Floats, Floats]] | None = None

    picture: list[Tensor]
    patches: list[Tensor]

    def update(self, trace: Trace, batch: Batch) -> None:
        places = [place for place, sample in enumerate(batch.samples) if sample.index in self.context.samples]
        if not places:
            return
        tokens = [trace.tokens(layer, self.options.tokens).flat_patches[places].cpu() for layer in self.context.layers]
        self.picture.append(torch.tensor([batch.samples[place].index for place in places]))
        self.patches.append(torch.stack(tokens, 1))

    def maps(self) -> dict[int, tuple[Floats, Floats]]:
        """layer -> (component scores [pictures,h,w,3], explained variance [3]), pictures in the order of the data."""
        if self._maps is None:
            pictures, patches = _joined(self.picture), _joined(self.patches)
            patches = patches[pictures.argsort()]
            self._maps = {
                layer: joint_components(patches[:, place].double().numpy(), self.context.grid, self.options.foreground)
                for place, layer in enumerate(self.context.layers)
            }
        return self._maps

    def table(self) -> list[Row]:
        """Explained variance by layer and component, n = patches of the fit."""
        if len(self.picture) == 0:
            return []
        n = len(_joined(self.picture)) * self.context.grid[0] * self.context.grid[1]
        return [
            Row(self.name, "explained_variance", float(share), n, layer, token=f"component {place}")
            for layer, (_, shares) in self.maps().items()
            for place, share in enumerate(shares, start=1)
        ]


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    return state if isinstance(state, Tensor) else torch.cat(state)


def joint_components(tokens: Floats, grid: tuple[int, int], foreground: bool = False) -> tuple[Floats, Floats]:
    """Scores on the first three principal components of all pictures' patches together.

    Args:
        tokens: [pictures, h*w, D].
        grid: (h, w).
        foreground: keep only the patches on the side of the first component that lies nearer to the picture centres, fit
            again on those; the others get NaN.

    Returns:
        scores [pictures,h,w,3] and the shares of variance explained [3]; components that do not exist (fewer than three
        dimensions or patches) are 0.
    """
    pictures, _, width = tokens.shape
    flat = tokens.reshape(-1, width)
    radius = np.tile(_radius(grid), pictures)
    keep = np.ones(len(flat), bool)
    if foreground:
        first, _ = _components(flat, radius)
        keep = first[:, 0] > 0
    scores = np.full((len(flat), COMPONENTS), np.nan)
    scores[keep], shares = _components(flat[keep], radius[keep])
    return scores.reshape(pictures, *grid, COMPONENTS), shares


def _components(flat: Floats, radius: Floats) -> tuple[Floats, Floats]:
    centred = flat - flat.mean(0)
    # Eigenvectors of the D x D covariance: the number of patches may be large, D is not.
    values, vectors = np.linalg.eigh(centred.T @ centred)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    kept = min(COMPONENTS, len(values))
    scores = np.zeros((len(flat), COMPONENTS))
    scores[:, :kept] = centred @ vectors[:, :kept]
    shares = np.zeros(COMPONENTS)
    if values.sum() > 0:
        shares[:kept] = values[:kept] / values.sum()
    return scores * _signs(scores, radius), shares


def _signs(scores: Floats, radius: Floats) -> Floats:
    """+1 or -1 for each component, so that its correlation with the distance to the picture centre is not positive.

    Where that correlation vanishes, the score of largest magnitude is made positive.
    """
    signs = np.ones(scores.shape[1])
    far = radius - radius.mean()
    for place, score in enumerate(scores.T):
        centred = score - score.mean()
        scale = np.linalg.norm(centred) * np.linalg.norm(far)
        correlation = centred @ far / scale if scale > 0 else 0.0
        if abs(correlation) > 1e-6:
            signs[place] = -np.sign(correlation)
        elif scale > 0:
            signs[place] = np.sign(score[np.argmax(np.abs(score))])
    return signs


def _radius(grid: tuple[int, int]) -> Floats:
    """Distance of every patch centre to the picture centre, in patches, [h*w]."""
    rows, columns = (np.arange(count) - (count - 1) / 2 for count in grid)
    return np.hypot(rows[:, None], columns[None]).ravel()


def to_rgb(scores: Floats) -> NDArray[np.uint8]:
    """Scores [pictures,h,w,3] as colours: 2nd to 98th percentile over all pictures to 0..255, NaN (background) black."""
    flat = scores.reshape(-1, COMPONENTS)
    low, high = np.nanpercentile(flat, 2, axis=0), np.nanpercentile(flat, 98, axis=0)
    span = np.where(high > low, high - low, 1)
    shades = np.clip((scores - low) / span, 0, 1)
    return np.nan_to_num(np.round(shades * 255)).astype(np.uint8)


def align(scores: Floats, reference: Floats) -> Floats:
    """Turns components 2 and 3 of `scores` onto those of `reference` by orthogonal Procrustes, for display only.

    Both [pictures,h,w,3]; when the grids differ, `reference` is sampled at the nearest patch.
    """
    rows = (np.arange(scores.shape[1]) * reference.shape[1] // scores.shape[1]).astype(int)
    columns = (np.arange(scores.shape[2]) * reference.shape[2] // scores.shape[2]).astype(int)
    target = reference[:, rows][:, :, columns, 1:].reshape(-1, COMPONENTS - 1)
    source = scores[..., 1:].reshape(-1, COMPONENTS - 1)
    both = ~(np.isnan(source).any(1) | np.isnan(target).any(1))
    left, _, right = np.linalg.svd(source[both].T @ target[both])
    turned = scores.copy()
    turned[..., 1:] = scores[..., 1:] @ (left @ right)
    return turned
