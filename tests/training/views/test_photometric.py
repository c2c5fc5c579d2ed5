"""Colours: the Pillow path and the batched path against float64, the blur against Pillow, the draws against their laws."""

from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy.stats import chisquare, kstest
from torch import Tensor

from diffusionlens.training.views.blur import blur, blur_matrix
from diffusionlens.training.views.crops import MultiCrop
from diffusionlens.training.views.device_augment import recolour_batch
from diffusionlens.training.views.photometric import Draws, recolour
from tests.training.views.colours import Floats, adjusted, grey_of, scene, solarized


def draws(order: tuple[int, ...], amounts: tuple[float, ...], grey: bool = False, solarize: bool = False) -> Draws:
    return Draws(
        jittered=torch.tensor(bool(order)),
        order=torch.tensor(order or (0, 1, 2, 3)),
        amounts=torch.tensor(amounts),
        grey=torch.tensor(grey),
        radius=torch.tensor(0.0),
        solarized=torch.tensor(solarize),
    )


STRONG, WEAK = (1.35, 0.62, 1.19, -0.09), (0.7, 1.4, 0.8, 0.1)
CASES = [
    *[draws(order, STRONG) for order in permutations(range(4))],
    draws((3, 2, 1, 0), WEAK, grey=True),
    draws((2, 0, 3, 1), WEAK, solarize=True),
    draws((), WEAK, grey=True, solarize=True),
    draws((), WEAK),
]


def wanted(picture: Floats, what: Draws) -> Floats:
    for operation in what.order.tolist() if what.jittered else []:
        picture = adjusted(picture, operation, float(what.amounts[operation]))
    if what.grey:
        picture = grey_of(picture).repeat(3, -1)
    return solarized(picture) if what.solarized else picture


def pixels(picture: Image.Image) -> Floats:
    return np.asarray(picture).astype(np.float64) / 255


def batch_of(pictures: list[Image.Image]) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures]).float() / 255


def test_a_batch_with_all_orders_of_jitter_at_once() -> None:
    pictures = [scene(place, 32) for place in range(len(CASES))]
    given = batch_of(pictures)
    before = given.clone()
    result = recolour_batch(given, Draws.cat([case[None] for case in CASES]))
    assert torch.equal(given, before)
    for picture, case, got in zip(pictures, CASES, result.permute(0, 2, 3, 1).double().numpy(), strict=True):
        # torchvision's weights of grey have four digits
        off = abs(got - wanted(pixels(picture), case))
        assert np.quantile(off, 0.995) < 3e-4
        assert off.mean() < 1e-4


def by_pillow(picture: Image.Image, what: Draws) -> Image.Image:
    """The same by Pillow's own tools, hue by 8-bit arithmetic."""
    for operation in what.order.tolist() if what.jittered else []:
        amount = float(what.amounts[operation])
        if operation < 3:
            tool = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[operation]
            picture = tool(picture).enhance(amount)
        else:
            hsv = np.array(picture.convert("HSV"))
            hsv[..., 0] = (hsv[..., 0].astype(int) + int(amount * 255)) % 256
            picture = Image.fromarray(hsv, "HSV").convert("RGB")
    if what.grey:
        picture = picture.convert("L").convert("RGB")
    return ImageOps.solarize(picture) if what.solarized else picture


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_one_picture_with_pillow() -> None:
    results = set()
    for case in CASES:
        picture = recolour(scene(), case)
        assert np.array_equal(np.asarray(picture), np.asarray(by_pillow(scene(), case)))
        results.add(picture.tobytes())
        # Pillow rounds to 8 bits after each step, hue and saturation too.
        assert abs(pixels(picture) - wanted(pixels(scene()), case)).mean() * 255 < 2.5
    assert len(results) >= 24  # hardly any two orders come to the same


def test_hue_of_every_kind_of_colour() -> None:
    levels = np.linspace(0, 1, 9)
    colours = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3)
    amounts = [-0.5, -0.31, 0.0, 0.1, 0.5]
    given = torch.from_numpy(colours).float().permute(2, 0, 1).expand(len(amounts), -1, -1, -1)
    cases = [draws((3, 0, 1, 2), (1.0, 1.0, 1.0, amount)) for amount in amounts]
    got = recolour_batch(given, Draws.cat([case[None] for case in cases])).permute(0, 2, 3, 1)
    for amount, result in zip(amounts, got, strict=True):
        np.testing.assert_allclose(result.numpy(), adjusted(colours, 3, amount), atol=1e-5)


@pytest.mark.parametrize("size", [(40, 50), (7, 5)])
def test_blur_is_that_of_pillow(size: tuple[int, int]) -> None:
    """To rounding: Pillow rounds after each of its six passes."""
    noise = (np.random.default_rng(0).random((*size, 3)) * 255).astype(np.uint8)
    picture = Image.fromarray(noise)
    radii = [0.1, 0.3, 0.5, 0.8, 1.0, 1.4, 2.0, 3.7]
    blurred = blur(batch_of([picture] * len(radii)), torch.tensor(radii)) * 255
    for radius, ours in zip(radii, blurred.permute(0, 2, 3, 1).numpy(), strict=True):
        pillow = np.asarray(picture.filter(ImageFilter.GaussianBlur(radius))).astype(float)
        assert abs(ours - pillow).max() < 3.5
        assert abs(ours - pillow).mean() < 1.1
        if radius >= 0.3:
            assert abs(ours - pillow).mean() < 0.1 * abs(noise - pillow).mean()


def test_the_kernel_has_the_variance_asked_for() -> None:
    radii = torch.tensor([0.1, 0.5, 0.99, 1.7, 4.0])
    middle = blur_matrix(radii, 101)[:, 50].double().numpy()
    places = np.arange(101) - 50
    np.testing.assert_allclose(middle.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(middle @ places, 0, atol=1e-5)
    np.testing.assert_allclose(middle @ places**2, radii.numpy() ** 2, rtol=1e-4)
    # A constant stays one up to the border.
    np.testing.assert_allclose(blur_matrix(radii, 9).sum(-1).numpy(), 1, atol=1e-5)


def test_draws_follow_their_laws() -> None:
    """Over 20,000 views of each kind: uniform amounts and radii, probabilities, all 24 orders alike."""
    crops = MultiCrop(local_count=1)
    uniforms = torch.rand(20_000, 3, 13, generator=torch.Generator().manual_seed(0))
    found = crops.photometric.draw(uniforms)
    for amount, (low, high) in zip(
        found.amounts.flatten(0, 1).T.double().numpy(), [(0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1)], strict=True
    ):
        assert kstest(amount, "uniform", (low, high - low)).pvalue > 0.01
    error = 4 * 0.5 / 20_000**0.5
    assert abs(found.jittered.float().mean(0) - 0.8).max() < error
    assert abs(found.grey.float().mean(0) - 0.2).max() < error
    assert abs((found.radius > 0).float().mean(0) - torch.tensor([1, 0.1, 0.5])).max() < error
    assert abs(found.solarized.float().mean(0) - torch.tensor([0, 0.2, 0])).max() < error
    assert not found.solarized[:, [0, 2]].any()
    assert found.radius[:, 0].all()
    radii = found.radius[found.radius > 0].double().numpy()
    assert kstest(radii, "uniform", (0.1, 1.9)).pvalue > 0.01
    codes = (found.order.flatten(0, 1) * torch.tensor([64, 16, 4, 1])).sum(-1)
    _, counts = codes.unique(return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts.numpy()).pvalue > 0.01


def test_blur_in_proportion_to_the_view() -> None:
    uniforms = torch.rand(50, 10, 13)
    plain, scaled = (MultiCrop(scale_blur=scale).photometric.draw(uniforms) for scale in (False, True))
    torch.testing.assert_close(scaled.radius[:, :2], plain.radius[:, :2])
    torch.testing.assert_close(scaled.radius[:, 2:], plain.radius[:, 2:] * 96 / 224)
