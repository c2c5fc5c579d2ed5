"""The batched colours and the Pillow ones: the same views for the same seeds, the same distribution for others, and both
that of DINO's own chain of transforms."""

import random
from collections.abc import Callable

import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2

from diffusionlens.training.crops import MultiCrop
from diffusionlens.training.device_augment import DeviceAugment
from tests.training.colours import scene

CROPS = MultiCrop(global_size=32, local_size=24, local_count=2)
SEEDS = list(range(12))


def both(crops: MultiCrop, seeds: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """All views of one scene a seed, by Pillow and in batches."""
    pictures = [scene(seed % 64) for seed in seeds]
    one_by_one = zip(*[crops(picture, seed) for picture, seed in zip(pictures, seeds, strict=True)], strict=True)
    cut = zip(*[crops.cut_tensors(picture, seed) for picture, seed in zip(pictures, seeds, strict=True)], strict=True)
    return [torch.stack(view) for view in one_by_one], DeviceAugment(crops)([torch.stack(v) for v in cut], seeds)


def test_the_same_seeds_make_the_same_views() -> None:
    by_pillow, batched = both(CROPS, SEEDS)
    assert [view.shape for view in batched] == [view.shape for view in by_pillow]
    for pillow, ours in zip(by_pillow, batched, strict=True):
        off = (pillow - ours).abs() * 0.225 * 255  # in steps of 8 bits
        assert off.mean() < 1.5
        assert off.flatten(1).mean(1).max() < 4  # no single picture is another one
        assert ours.std() > 0.3


def test_a_sample_is_the_same_in_every_batch() -> None:
    _, batched = both(CROPS, SEEDS)
    _, alone = both(CROPS, SEEDS[5:6])
    for whole, one in zip(batched, alone, strict=True):
        torch.testing.assert_close(whole[5:6], one, atol=1e-5, rtol=1e-5)


def by_dino(picture: Image.Image, view: int) -> Image.Image:
    """DINO's chain after the crop, by torchvision's own random transforms and Python's random numbers."""
    jitter = v2.Compose([v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), v2.RandomGrayscale(0.2)])
    picture = jitter(picture)
    if random.random() <= (1.0, 0.1, 0.5)[view]:
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    return ImageOps.solarize(picture) if view == 1 and random.random() < 0.2 else picture


STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "red": lambda x: x[:, 0].mean((1, 2)),
    "blue": lambda x: x[:, 2].mean((1, 2)),
    "brightest": lambda x: x.amax((1, 2, 3)),
    "contrast": lambda x: x.mean(1).std((1, 2)),
    "saturation": lambda x: (x.amax(1) - x.amin(1)).mean((1, 2)),
    "green over red": lambda x: (x[:, 1] - x[:, 0]).mean((1, 2)),
    "detail": lambda x: (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3)).clamp(min=1e-6).log(),
    "median": lambda x: x.flatten(1).median(1).values,
}


def coloured(crops: MultiCrop, first: int, n: int, batched: bool) -> list[Tensor]:
    """`n` times the colours of one and the same view (the crop plays no part), as 0..1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (crops.mean, crops.std))
    seeds = list(range(first, first + n))
    if batched:
        cut = [view[None].expand(n, -1, -1, -1) for view in crops.cut_tensors(scene(), 0)]
        views = DeviceAugment(crops)(cut, seeds)
    else:
        stacks = zip(*[crops(scene(), seed) for seed in seeds], strict=True)
        views = [torch.stack(view) for view in stacks]
    return [view * std + mean for view in views]


# The whole scene in every view, so that only colours differ.
WHOLE = {"global_scale": (1.0, 1.0), "local_scale": (1.0, 1.0), "flip": 0.0, "global_size": 24, "local_size": 24}
FIXED = MultiCrop(**WHOLE, local_count=1)  # type: ignore[arg-type]
DRAWS = 1000


@pytest.fixture(scope="module")
def dino() -> list[Tensor]:
    torch.manual_seed(0)
    random.seed(0)
    cut = FIXED.cut(scene(), 0)
    to_tensor = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    return [torch.stack([to_tensor(by_dino(cut[view], view)) for _ in range(DRAWS)]) for view in range(3)]


def pvalues(one: list[Tensor], other: list[Tensor]) -> dict[tuple[int, str], float]:
    """Kolmogorov-Smirnov. Views that nothing happens to all have one value, but for rounding; noise of a tenth of the
    standard deviation spreads it, so that rounding is not taken for another distribution."""
    found, noise = {}, torch.Generator().manual_seed(0)
    for view in range(3):
        for name, law in STATISTICS.items():
            a, b = law(one[view]), law(other[view])
            a, b = (x + 0.1 * b.std() * torch.randn(len(x), generator=noise) for x in (a, b))
            found[view, name] = ks_2samp(a.numpy(), b.numpy()).pvalue
    return found


@pytest.mark.parametrize("batched", [False, True])
def test_the_distribution_is_that_of_dino(batched: bool, dino: list[Tensor]) -> None:
    """24 laws; by chance one in a thousand such tests would fall under the bound (fixed seeds, so it never changes)."""
    ours = coloured(FIXED, 10_000 if batched else 50_000, DRAWS, batched)
    found = pvalues(ours, dino)
    assert min(found.values()) > 1e-3, found
    for view in range(3):
        for law in STATISTICS.values():
            a, b = law(ours[view]), law(dino[view])
            error = (a.var() / DRAWS + b.var() / DRAWS).sqrt()
            assert abs(a.mean() - b.mean()) < 4 * error
            assert float(a.std() / b.std()) == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    ("change", "view"),
    [
        ({"jitter": (0.4, 0.4, 0.2, 0.05)}, 0),
        ({"jitter": (0.4, 0.4, 0.3, 0.1)}, 0),
        ({"jitter": (0.3, 0.4, 0.2, 0.1)}, 2),
        ({"jitter_probability": 0.65}, 2),
        ({"grey": 0.3}, 1),
        ({"blur": (1.0, 0.2, 0.4)}, 2),
        ({"blur_radius": (0.1, 1.6)}, 0),
        ({"solarize": (0.0, 0.3, 0.0)}, 1),
    ],
)
def test_the_comparison_would_see_another_distribution(
    change: dict[str, object], view: int, dino: list[Tensor]
) -> None:
    other = coloured(MultiCrop(**WHOLE, local_count=1, **change), 10_000, DRAWS, True)  # type: ignore[arg-type]
    assert min(p for (place, _), p in pvalues(other, dino).items() if place == view) < 1e-3
