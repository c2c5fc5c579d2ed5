"""How a picture is looked at by a model of a fixed size: windows that overlap, or whole and mirrored; and back again.

A view whose size the patches don't divide is padded around with the mean colour, as DINOv2 does (CenterPadding). What heads say
is brought to the padded view and cut, so that every pixel keeps its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.probes.geometry.upsampled import upsample


@dataclass(frozen=True)
class Padding:
    """A view of `size` (H, W) lies at (`top`, `left`) of a padded one of size `padded`, which the patches divide."""

    size: tuple[int, int]
    padded: tuple[int, int]
    top: int
    left: int

    @classmethod
    def around(cls, size: tuple[int, int], patch: tuple[int, int]) -> "Padding":
        padded = (-(-size[0] // patch[0]) * patch[0], -(-size[1] // patch[1]) * patch[1])
        return cls(size, padded, (padded[0] - size[0]) // 2, (padded[1] - size[1]) // 2)

    def pad(self, images: Tensor) -> Tensor:
        """Normalised pictures [B,3,H,W] in their padded size; 0 is the mean colour."""
        below, right = self.padded[0] - self.size[0] - self.top, self.padded[1] - self.size[1] - self.left
        return functional.pad(images, (self.left, right, self.top, below))

    def cut(self, maps: Tensor) -> Tensor:
        """The view's part of maps [...,*padded]."""
        return maps[..., self.top : self.top + self.size[0], self.left : self.left + self.size[1]]

    def shares(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Places given as shares of the view's height and width, as shares of the padded ones."""
        return (
            (rows * self.size[0] + self.top) / self.padded[0],
            (columns * self.size[1] + self.left) / self.padded[1],
        )


@dataclass(frozen=True)
class Views:
    """Views of one picture of `size` (H, W): their top left corners, their padding, and which of them are mirrored."""

    size: tuple[int, int]
    corners: tuple[tuple[int, int], ...]
    padding: Padding
    mirrored: tuple[bool, ...]

    def images(self, picture: Tensor) -> Tensor:
        """The views [V,3,*padded] of a normalised picture [3,H,W]; what lies beyond it is the mean colour."""
        height, width = self.padding.size
        found = []
        for (top, left), mirrored in zip(self.corners, self.mirrored, strict=True):
            part = picture[:, top : top + height, left : left + width]
            part = functional.pad(part, (0, width - part.shape[2], 0, height - part.shape[1]))
            found.append(part.flip(2) if mirrored else part)
        return self.padding.pad(torch.stack(found))

    def mean(self, maps: Tensor) -> Tensor:
        """[C,H,W]: the mean, at every pixel of the picture, of what the views [V,C,*padded] say there.

        Source: mmsegmentation, EncoderDecoder.slide_inference.
        """
        total = maps.new_zeros(maps.shape[1], *self.size)
        count = maps.new_zeros(self.size)
        for view, (top, left), mirrored in zip(self.padding.cut(maps), self.corners, self.mirrored, strict=True):
            own = view.flip(-1) if mirrored else view
            rows, columns = slice(top, top + own.shape[1]), slice(left, left + own.shape[2])
            place = total[:, rows, columns]
            place += own[:, : place.shape[1], : place.shape[2]]
            count[rows, columns] += 1
        return total / count


def windows(size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], patch: tuple[int, int]) -> Views:
    """Windows over a picture of `size`, `stride` apart; the last ones end where the picture ends."""
    starts = [_starts(*sides) for sides in zip(size, window, stride, strict=True)]
    corners = tuple((top, left) for top in starts[0] for left in starts[1])
    return Views(size, corners, Padding.around(window, patch), (False,) * len(corners))


def whole(size: tuple[int, int], patch: tuple[int, int], *, mirrored: bool) -> Views:
    """The whole picture, and its mirror image if that is wanted too."""
    both = (False, True) if mirrored else (False,)
    return Views(size, ((0, 0),) * len(both), Padding.around(size, patch), both)


def upsampled_mean(outputs: Tensor, views: Views) -> Tensor:
    """The mean [C,H,W] of logits [V,h,w,C] on the patches of `views`, each brought to its pixels."""
    return views.mean(upsample(outputs.permute(0, 3, 1, 2), views.padding.padded))


def _starts(side: int, window: int, stride: int) -> Sequence[int]:
    count = max(side - window + stride - 1, 0) // stride + 1
    return [max(min(place * stride, side - window), 0) for place in range(count)]
