"""The batched colours and the Pillow ones: the same views for the same seeds, the same distribution for others, and both
that of DINO's own chain of transforms."""

import random
from collections.abc import Callable

import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import ColorJitter, Compose, RandomApply, RandomGrayscale
from torchvision.transforms.v2.functional import pil_to_tensor

from diffusionlens.training.views.crops import MultiCrop
from diffusionlens.training.views.device_augment import DeviceAugment
from diffusionlens.training.views.photometric import recolour
from tests.training.views.colours import scene

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


JITTER = Compose([RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), RandomGrayscale(0.2)])


def by_dino(picture: Image.Image, view: int) -> Image.Image:
    """DINO's chain after the crop, by torchvision's own random transforms and Python's random numbers."""
    picture = JITTER(picture)
    if random.random() <= (1.0, 0.1, 0.5)[view]:
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    return ImageOps.solarize(picture) if view == 1 and random.random() < 0.2 else picture


STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "red": lambda x: x[:, 0].mean((1, 2)),
    "blue": lambda x: x[:, 2].mean((1, 2)),
    "brightest": lambda x: x.amax((1, 2, 3)),
    "contrast": lambda x: x.mean(1).std((1, 2)) / x.mean((1, 2, 3)),
    "saturation": lambda x: (x.amax(1) - x.amin(1)).mean((1, 2)) / x.mean((1, 2, 3)),
    "green over red": lambda x: (x[:, 1] - x[:, 0]).mean((1, 2)),
    "detail": lambda x: (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3)).clamp(min=1e-6).log(),
    "median": lambda x: x.flatten(1).median(1).values,
}


PICTURE = scene(11).resize((24, 24))  # one that has bright pixels for solarisation to turn
DRAWS = 1000


def stacked(pictures: list[Image.Image]) -> Tensor:
    return torch.stack([pil_to_tensor(picture) for picture in pictures]).float() / 255


def coloured(crops: MultiCrop, first: int, batched: bool) -> list[Tensor]:
    """The first global, the second global and a local view many times over, as 0..1; only their colours differ."""
    seeds = range(first, first + DRAWS)
    if not batched:
        draws = [crops.draw(seed) for seed in seeds]
        return [stacked([recolour(PICTURE, draw[view]) for draw in draws]) for view in range(3)]
    mean, std = (torch.tensor(values)[:, None, None] for values in (crops.mean, crops.std))
    view = pil_to_tensor(PICTURE).expand(DRAWS, -1, -1, -1)
    return [result * std + mean for result in DeviceAugment(crops)([view] * 3, seeds)]


@pytest.fixture(scope="module")
def dino() -> list[Tensor]:
    torch.manual_seed(0)
    random.seed(0)
    return [stacked([by_dino(PICTURE, view) for _ in range(DRAWS)]) for view in range(3)]


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
    """24 laws, of which one in a thousand would fall under the bound by chance (never here: the seeds are fixed)."""
    ours = coloured(MultiCrop(local_count=1), 10_000 if batched else 50_000, batched)
    found = pvalues(ours, dino)
    assert min(found.values()) > 1e-3, found
    for view in range(3):
        for law in STATISTICS.values():
            a, b = law(ours[view]), law(dino[view])
            error = (a.var() / DRAWS + b.var() / DRAWS).sqrt()
            assert abs(a.mean() - b.mean()) < 4 * error
            assert float(a.std() / b.std()) == pytest.approx(1, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "view"),
    [
        ({"jitter": (0.4, 0.4, 0.2, 0.05)}, 0),
        ({"jitter": (0.4, 0.4, 0.6, 0.1)}, 0),
        ({"jitter": (0.4, 0.2, 0.2, 0.1)}, 0),
        ({"jitter": (0.3, 0.4, 0.2, 0.1)}, 2),
        ({"jitter_probability": 0.6}, 2),
        ({"grey": 0.3}, 1),
        ({"blur": (1.0, 0.1, 0.3)}, 2),
        ({"blur_radius": (0.1, 1.6)}, 0),
        ({"solarize": (0.0, 0.35, 0.0)}, 1),
    ],
)
def test_the_comparison_would_see_another_distribution(
    change: dict[str, object], view: int, dino: list[Tensor]
) -> None:
    other = coloured(MultiCrop(local_count=1, **change), 10_000, True)  # type: ignore[arg-type]
    assert min(p for (place, _), p in pvalues(other, dino).items() if place == view) < 1e-3
