"""Views: where they are cut, against the algorithm of random resized crops; and that nothing but the seed decides."""

import math
import pickle
import random
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest, ks_2samp, kstest
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffusionlens.errors import InputError
from diffusionlens.training.views.crops import MultiCrop, sample_seed
from tests.training.views.colours import scene

SMALL = MultiCrop(global_size=40, local_size=24, local_count=4)


WIDTH, HEIGHT = 256, 192


def chart() -> Image.Image:
    """Red is the column, green the row."""
    red, green = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    return Image.fromarray(np.stack([red, green, 0 * red], -1).astype(np.uint8))


def window(view: Image.Image) -> tuple[int, int, int, int, bool]:
    """(left, top, width, height) of a view of the chart, to a pixel of the chart, and whether it is flipped."""
    pixels, size = np.asarray(view).astype(float), view.width
    inner = np.arange(4, size - 4)  # bicubic interpolation keeps a ramp, but for the border
    slope_x, start_x = np.polyfit(inner + 0.5, pixels[:, inner, 0].mean(0) + 0.5, 1)
    slope_y, start_y = np.polyfit(inner + 0.5, pixels[inner, :, 1].mean(1) + 0.5, 1)
    flipped = bool(slope_x < 0)
    left = start_x + slope_x * size if flipped else start_x
    return round(left), round(start_y), round(abs(slope_x) * size), round(slope_y * size), flipped


def by_the_book(rng: np.random.Generator, scale: tuple[float, float]) -> tuple[float, ...]:
    """A random resized crop: area uniform, log aspect uniform, place uniform; another try when it does not fit."""
    while True:
        area, aspect = rng.uniform(*scale) * WIDTH * HEIGHT, math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= WIDTH and 0 < h <= HEIGHT:
            return rng.integers(WIDTH - w + 1), rng.integers(HEIGHT - h + 1), w, h


def test_windows_are_random_resized_crops() -> None:
    picture, rng = chart(), np.random.default_rng(0)
    crops = MultiCrop(global_size=40, local_size=24, local_count=2)
    found = [[window(view) for view in crops.cut(picture, seed)] for seed in range(300)]
    for place, scale in enumerate([(0.4, 1.0), (0.4, 1.0), (0.05, 0.4), (0.05, 0.4)]):
        ours = np.array([views[place] for views in found])
        book = np.array([by_the_book(rng, scale) for _ in range(3000)])
        assert (ours[:, :2] >= -1).all()
        assert (ours[:, :2] + ours[:, 2:4] <= [WIDTH + 1, HEIGHT + 1]).all()
        for law in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 2] / b[:, 3], lambda b: b[:, 0], lambda b: b[:, 1]):
            assert ks_2samp(law(ours), law(book)).pvalue > 0.01
        assert binomtest(int(ours[:, 4].sum()), 300).pvalue > 0.01
    local = np.array([view for views in found for view in views[2:]])
    # Local windows always fit, so that the laws hold without the book.
    assert kstest(local[:, 2] * local[:, 3] / (WIDTH * HEIGHT), "uniform", (0.05, 0.35)).pvalue > 0.01
    log_aspect = np.log(local[:, 2] / local[:, 3])
    assert kstest(log_aspect, "uniform", (math.log(3 / 4), math.log(16 / 9))).pvalue > 0.01


def test_pixels_are_those_of_a_bicubic_crop() -> None:
    """A pixel more or less at a border makes other pixels, so exactly one window can be the right one."""
    picture = scene().resize((WIDTH, HEIGHT))
    for view, charted in zip(SMALL.cut(picture, 3), SMALL.cut(chart(), 3), strict=True):
        left, top, width, height, flipped = window(charted)
        matches = 0
        for a, b, c, d in product((-1, 0, 1), repeat=4):
            box = (left + a, top + b, left + width + c, top + height + d)
            oracle = picture.crop(box).resize(view.size, Image.Resampling.BICUBIC)
            oracle = oracle.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flipped else oracle
            matches += np.array_equal(np.asarray(view), np.asarray(oracle))
        assert matches == 1


def test_plain_views_are_the_cut_ones_normalised() -> None:
    plain = MultiCrop(local_count=2, jitter_probability=0, grey=0, blur=(0, 0, 0), solarize=(0, 0, 0))
    views, cut = plain(scene(size=128), 5), plain.cut_tensors(scene(size=128), 5)
    assert [tuple(view.shape) for view in views] == [(3, 224, 224)] * 2 + [(3, 96, 96)] * 2
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    for view, uint8 in zip(views, cut, strict=True):
        assert (view.dtype, uint8.dtype) == (torch.float32, torch.uint8)
        torch.testing.assert_close(view, (uint8 / 255 - mean[:, None, None]) / std[:, None, None])


def test_nothing_but_the_seed_decides() -> None:
    first = SMALL(scene(), 7)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    state = torch.get_rng_state()
    again = pickle.loads(pickle.dumps(SMALL))(scene(), 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], SMALL(scene(), 8)[0])
    assert not torch.equal(first[0], first[1])


def test_seeds_of_samples() -> None:
    seeds = {sample_seed(run, epoch, index) for run in range(3) for epoch in range(20) for index in range(200)}
    assert len(seeds) == 3 * 20 * 200
    assert sample_seed(0, 1, 2) != sample_seed(0, 2, 1)
    assert sample_seed(0, 0, 0) == 15793235383387715774  # the same on every machine, today and later


class _Views(Dataset[list[Tensor]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[Tensor]:
        return SMALL(scene(index), sample_seed(0, 0, index))


def test_workers_change_nothing() -> None:
    alone, shared = ([batch[0] for batch in DataLoader(_Views(), 2, num_workers=n)] for n in (0, 2))
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))


def test_real_pictures_of_every_shape() -> None:
    for size in [(1, 1), (3, 400), (400, 3), (500, 375)]:
        views = SMALL(Image.new("RGB", size, (200, 30, 90)), 1)
        assert all(torch.isfinite(view).all() for view in views)
        assert [view.shape[-1] for view in views] == [40, 40, 24, 24, 24, 24]


def test_flips_can_be_left_out() -> None:
    crops = MultiCrop(global_size=40, local_count=0, flip=0)
    assert not any(window(view)[4] for seed in range(20) for view in crops.cut(chart(), seed))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_count": 0}, "no views of a picture"),
        ({"local_size": 0}, "no views of a picture"),
        ({"global_scale": (0.5, 0.4)}, r"global_scale \(0.5, 0.4\) is no range"),
        ({"local_scale": (0.0, 0.4)}, "local_scale"),
        ({"local_scale": (0.1, 1.4)}, "local_scale"),
        ({"blur_radius": (0.0, 2.0)}, "blur_radius"),
        ({"blur": (1.0, 1.1, 0.5)}, "blur .* is no probability"),
        ({"grey": -0.1}, "grey"),
        ({"jitter": (0.4, 0.4, 0.2, 0.6)}, "hue at most 0.5"),
    ],
)
def test_what_makes_no_views(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MultiCrop(**options)  # type: ignore[arg-type]
