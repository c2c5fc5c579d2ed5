"""Windows and mirror images of a picture, put together again; losses over whole maps; the schedule."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from diffusionlens.analysis.probes.geometry.views import Padding, upsampled_mean, whole, windows
from diffusionlens.analysis.probes.heads.kinds import KINDS, with_partner
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.optimizer import schedule_factor
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.streamed.training import _map_losses
from diffusionlens.analysis.probes.tasks.depth import Depth, sigloss
from diffusionlens.analysis.probes.tasks.segmentation import Segmentation


def naive_slide(
    outputs: torch.Tensor, size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int]
) -> np.ndarray:
    """Pixel by pixel: the mean of what every window says of it, windows as mmsegmentation's slide_inference places them."""
    height, width = size
    corners = []
    for row in range(max(height - window[0] + stride[0] - 1, 0) // stride[0] + 1):
        for column in range(max(width - window[1] + stride[1] - 1, 0) // stride[1] + 1):
            bottom, right = min(row * stride[0] + window[0], height), min(column * stride[1] + window[1], width)
            corners.append((max(bottom - window[0], 0), max(right - window[1], 0)))
    fine = functional.interpolate(outputs.permute(0, 3, 1, 2), size=window, mode="bilinear").numpy()
    found = np.zeros((outputs.shape[-1], height, width))
    for y in range(height):
        for x in range(width):
            there = [
                own[:, y - top, x - left]
                for own, (top, left) in zip(fine, corners, strict=True)
                if 0 <= y - top < window[0] and 0 <= x - left < window[1]
            ]
            found[:, y, x] = np.mean(there, 0)
    return found


@pytest.mark.parametrize("size", [(16, 16), (16, 29), (23, 16), (37, 41), (12, 20)])
def test_sliding_windows_are_those_of_a_naive_loop(size: tuple[int, int]) -> None:
    window, stride = (16, 16), (11, 11)
    views = windows(size, window, stride, (4, 4))
    outputs = torch.randn(len(views.corners), 4, 4, 3)
    found = upsampled_mean(outputs, views)
    np.testing.assert_allclose(found.numpy(), naive_slide(outputs, size, window, stride), atol=1e-5)


def test_the_published_windows() -> None:
    assert windows((512, 683), (512, 512), (341, 341), (16, 16)).corners == ((0, 0), (0, 171))
    assert len(windows((512, 1024), (512, 512), (341, 341), (16, 16)).corners) == 3


@pytest.mark.parametrize("patch", [(4, 4), (5, 7)])
def test_views_show_and_answer_the_same_pixels(patch: tuple[int, int]) -> None:
    """What a view shows, given back as what it says, is the picture; padding included."""
    picture = torch.randn(3, 21, 30)
    for views in (windows((21, 30), (16, 16), (9, 9), patch), whole((21, 30), patch, mirrored=True)):
        images = views.images(picture)
        assert images.shape[2] % patch[0] == images.shape[3] % patch[1] == 0
        torch.testing.assert_close(views.mean(images), picture)


def test_a_padded_place_is_where_its_pixel_is() -> None:
    padding = Padding.around((10, 16), (7, 7))
    assert (padding.padded, padding.top, padding.left) == ((14, 21), 2, 2)
    rows, columns = padding.shares(torch.tensor([0.5 / 10]), torch.tensor([15.5 / 16]))
    assert float(rows) * 14 == pytest.approx(2.5)
    assert float(columns) * 21 == pytest.approx(17.5)
    image = torch.randn(2, 3, 10, 16)
    torch.testing.assert_close(padding.cut(padding.pad(image)), image)


@pytest.mark.parametrize("name", ["segmentation", "depth"])
def test_losses_head_by_head_have_the_gradient_of_their_sum(name: str) -> None:
    """Against autograd through upsampling, cross-entropy (SigLoss) and heads at once."""
    generator = torch.Generator().manual_seed(0)
    tokens = with_partner(torch.randn(2, 6, generator=generator), torch.randn(2, 3, 4, 6, generator=generator))
    padding = Padding.around((10, 14), (4, 4))
    task: Segmentation | Depth
    if name == "segmentation":
        task, targets = Segmentation(5, 1), torch.randint(5, (2, 10, 14), generator=generator)
        targets[0, :3] = 255
    else:
        task = Depth(5, 1, (1e-3, 10.0), "none", 0)
        targets = 9 * torch.rand(2, 10, 14, generator=generator) + 0.5
        targets[1, :, :4] = torch.nan
    gradients = []
    for direct in (False, True):
        heads = LayerHeads(KINDS, 6, 5, 2, 1, batch_norm=task.batch_norm, device=torch.device("cpu"))
        if not direct:
            loss = _map_losses(task, heads, tokens, targets, padding, 9)
        else:
            outputs = heads(tokens, tokens.patches.flatten(1, 2), training=True).unflatten(1, (3, 4))
            parts = []
            for kind in range(5):
                for rate in range(2):
                    own = outputs[:, :, :, kind, rate].permute(0, 3, 1, 2)
                    if name == "segmentation":
                        fine = functional.interpolate(own, size=(12, 16), mode="bilinear")[:, :, 1:11, 1:15]
                        parts.append(functional.cross_entropy(fine, targets, ignore_index=255))
                    else:
                        fine = functional.interpolate(own, scale_factor=4, mode="bilinear").relu() + 0.1
                        bins = torch.linspace(1e-3, 10, 5)[None, :, None, None]
                        metres = (fine * bins).sum(1) / fine.sum(1)
                        metres = functional.interpolate(metres[:, None], size=(12, 16), mode="bilinear")[
                            :, 0, 1:11, 1:15
                        ]
                        counted = torch.isfinite(targets)
                        parts.append(sigloss(metres[counted], targets[counted], warming_up=False))
            loss = torch.stack(parts).sum()
        gradients.append(torch.autograd.grad(loss, list(heads.parameters.values()), allow_unused=True))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_an_unlabelled_batch_teaches_nothing() -> None:
    padding = Padding.around((8, 8), (4, 4))
    outputs = torch.randn(1, 2, 2, 5, requires_grad=True)
    for task, targets in (
        (Segmentation(5, 1), torch.full((1, 8, 8), 255)),
        (Depth(5, 1, (1e-3, 10.0), "none", 0), torch.full((1, 8, 8), torch.nan)),
    ):
        loss = task.map_loss(outputs, targets, padding, 0)
        assert loss.detach() == 0
        assert float(torch.autograd.grad(loss, outputs)[0].abs().sum()) == 0


def test_the_schedules_of_the_preset() -> None:
    """Closed forms: 1e-3 (1 - t/40000), from a millionth of it over 1500 steps; 1e-4 (1 + cos(pi t/38400))/2 over 12800."""
    recipe = recipe_for("segmentation", "dinov2", [])
    for step in (0, 1, 750, 1499, 1500, 20_000, 39_999):
        expected = 1 - step / 40_000
        if step < 1500:
            expected *= 1e-6 + (1 - 1e-6) * step / 1500
        assert recipe.factor(step) == pytest.approx(expected, rel=1e-9)
    assert recipe.rates == (1e-3,)
    depth = recipe_for("depth", "dinov2", [])
    for step in (0, 6_400, 12_800, 38_399):
        expected = 0.5 * (1 + math.cos(math.pi * step / 38_400))
        if step < 12_800:
            expected *= 1e-3 + (1 - 1e-3) * step / 12_800
        assert depth.factor(step) == pytest.approx(expected, rel=1e-9)
    assert schedule_factor(20_000, 40_000, 1500, "poly") == 0.5


def test_a_mirrored_picture_counts_as_much_as_itself() -> None:
    task = Depth(4, 1, (1e-3, 10.0), "none", 0)
    views = whole((8, 12), (4, 4), mirrored=True)
    outputs = torch.randn(2, 2, 3, 4)
    one, other = (task.predict(own[None], (8, 12))[0] for own in outputs)
    torch.testing.assert_close(task.merged(outputs, views, (8, 12)), (one + other.flip(1)) / 2)
