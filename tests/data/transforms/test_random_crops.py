"""Random crops: labels stay what they are and where the picture's pixels are; draws are those of seed and place alone."""

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionlens.data.sample import Picture
from diffusionlens.data.transforms.random_colours import depth_colours, photometric_distortion
from diffusionlens.data.transforms.random_crops import DepthCrops, SegmentationCrops, nearest, without_border

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
LABELS = (0, 7, 20, 255)


def planted(height: int = 90, width: int = 120, cell: int = 30) -> Picture:
    """Squares of labels, each with a grey of its own (its label's value)."""
    rows, columns = np.indices((height, width)) // cell
    mask = np.array(LABELS)[(rows + 2 * columns) % 4]
    image = Image.fromarray(np.repeat(mask[..., None], 3, -1).astype(np.uint8))
    return Picture(image, "planted", mask=torch.from_numpy(mask.astype(np.int64)))


def greys(image: torch.Tensor) -> torch.Tensor:
    """The pixels' values of 0..255, channel 0 of a normalised picture."""
    return (image[0] * STD[0] + MEAN[0]) * 255


@pytest.mark.parametrize("size", [(64, 64), (48, 80), (200, 200)])
def test_masks_stay_indexes_where_their_pixels_are(size: tuple[int, int]) -> None:
    crops = SegmentationCrops(size, MEAN, STD, seed=3, photometric=False)
    for index in range(12):
        sample = crops(planted(), index)
        assert sample.mask is not None
        assert sample.image.shape == (3, *size)
        assert sample.mask.shape == size
        assert set(sample.mask.unique().tolist()) <= set(LABELS)
        found = greys(sample.image)
        inside = sample.mask.float()
        smooth = torch.nn.functional.max_pool2d(inside[None], 15, 1, 7) == -torch.nn.functional.max_pool2d(
            -inside[None], 15, 1, 7
        )
        middle = smooth[0] & (sample.mask != 255)  # far from every edge, where resizing has nothing to mix
        torch.testing.assert_close(found[middle], inside[middle], atol=3, rtol=0)  # labels lie 7 apart


def test_what_lies_beyond_the_picture_is_ignored_and_of_the_mean_colour() -> None:
    crops = SegmentationCrops((100, 100), MEAN, STD, seed=0, ratio=(0.5, 0.5), flip=0, photometric=False)
    sample = crops(planted(100, 100, 50), 0)
    assert sample.mask is not None
    assert (sample.mask[50:] == 255).all()
    assert (sample.mask[:, 50:] == 255).all()
    assert (sample.image[:, 50:] == 0).all()
    assert (sample.mask[:50, :50] != 255).any()


def test_the_shorter_side_is_drawn_and_the_longer_one_bounded() -> None:
    """A picture whose grey is its column: how far the grey moves over the crop tells by how much it was scaled."""
    image = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (100, 1))[..., None].repeat(3, -1))
    crops = SegmentationCrops((64, 64), MEAN, STD, seed=0, flip=0, photometric=False)
    shares = []
    for index in range(60):
        line = greys(crops(Picture(image, "p"), index).image)[0, :32]
        shares.append(
            31 / float(line[-1] - line[0]) * 100 / 64
        )  # scaled pixels per pixel, times 100 / 64: the drawn ratio
    assert min(shares) == pytest.approx(0.5, abs=0.1)
    assert max(shares) == pytest.approx(2, abs=0.25)
    assert np.mean(shares) == pytest.approx(1.25, abs=0.15)


def test_crops_of_one_class_are_drawn_again() -> None:
    mask = torch.zeros(64, 128, dtype=torch.int64)
    mask[:, 64:] = 1
    picture = Picture(Image.new("RGB", (128, 64)), "halves", mask=mask)
    worst = {}
    for limit in (0.75, 1.0):
        crops = SegmentationCrops((64, 64), MEAN, STD, seed=1, ratio=(1, 1), most_of_one_class=limit, photometric=False)
        masks = [crops(picture, index).mask for index in range(40)]
        worst[limit] = max(float(torch.bincount(own.flatten(), minlength=2).max()) / 64**2 for own in masks)  # type: ignore[union-attr]
    assert worst[0.75] < 0.75
    assert worst[1.0] > 0.9


def test_a_place_in_the_stream_has_one_crop() -> None:
    crops = SegmentationCrops((64, 64), MEAN, STD, seed=0)
    first, again, other = (crops(planted(), index).image for index in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, SegmentationCrops((64, 64), MEAN, STD, seed=1)(planted(), 5).image)


def test_half_of_the_pictures_are_mirrored() -> None:
    """A ramp from left to right, whose labels are its halves."""
    image = Image.fromarray(np.tile(np.arange(128, dtype=np.uint8), (64, 1))[..., None].repeat(3, -1))
    mask = (torch.arange(128) >= 64).long().expand(64, -1)
    crops = SegmentationCrops((64, 128), MEAN, STD, seed=2, ratio=(1, 1), photometric=False)
    mirrored = 0
    for index in range(100):
        sample = crops(Picture(image, "ramp", mask=mask), index)
        assert sample.mask is not None
        assert torch.equal(sample.mask == 1, greys(sample.image).round() >= 64)
        mirrored += int(sample.mask[0, 0])
    assert 35 <= mirrored <= 65


def test_depth_is_that_of_measured_pixels() -> None:
    """Depth is the column in metres, and so is the grey: turned, mirrored and cut together."""
    columns = np.tile(np.arange(1, 161, dtype=np.float32), (120, 1))
    depth = torch.from_numpy(columns.copy())
    depth[:20] = torch.nan
    picture = Picture(Image.fromarray(columns.astype(np.uint8)[..., None].repeat(3, -1)), "d", depth=depth)
    turned = 0
    for index in range(20):
        sample = DepthCrops((96, 128), MEAN, STD, seed=0, brightness=(1, 1))(picture, index)
        assert sample.depth is not None
        there = sample.depth[torch.isfinite(sample.depth)]
        assert set(there.tolist()) <= set(range(1, 161))
        turned += int((torch.isfinite(sample.depth).all(1).diff() != 0).sum() > 1)
    plain = DepthCrops((96, 128), MEAN, STD, seed=0, rotate=0, flip=0.5)
    for index in range(10):
        sample = plain(picture, index)
        found = greys(sample.image)
        assert sample.depth is not None
        counted = torch.isfinite(sample.depth)
        slope = torch.corrcoef(torch.stack([found[counted], sample.depth[counted]]))[0, 1]
        assert slope > 0.999  # colours keep the order


def test_what_a_small_picture_lacks_has_no_reading() -> None:
    picture = Picture(Image.new("RGB", (50, 40)), "small", depth=torch.ones(40, 50))
    sample = DepthCrops((64, 64), MEAN, STD, seed=0, rotate=0)(picture, 0)
    assert sample.depth is not None
    assert torch.isfinite(sample.depth).sum() == 2000
    assert torch.isnan(sample.depth[40:]).all()


def test_borders() -> None:
    depth = torch.arange(480 * 640, dtype=torch.float32).view(480, 640)
    room = Picture(Image.new("RGB", (640, 480)), "room", depth=depth)
    inner = without_border(room, "nyu")
    assert inner.image.size == (565, 427)
    assert inner.depth is not None
    assert inner.depth[0, 0] == 45 * 640 + 43
    street = Picture(Image.new("RGB", (1242, 375)), "street", depth=torch.arange(375 * 1242.0).view(375, 1242))
    lower = without_border(street, "kb")
    assert lower.image.size == (1216, 352)
    assert lower.depth is not None
    assert lower.depth[0, 0] == 23 * 1242 + 13
    assert without_border(room, "kb") is room
    assert without_border(street, "none") is street


@pytest.mark.parametrize("size", [(8, 3), (5, 7), (40, 41)])
def test_nearest_is_torchs(size: tuple[int, int]) -> None:
    values = torch.arange(17 * 13).view(17, 13)
    expected = torch.nn.functional.interpolate(values[None, None].double(), size=size, mode="nearest-exact")[0, 0]
    assert torch.equal(nearest(values, size), expected.long())


def test_grey_stays_grey_whatever_the_saturation() -> None:
    grey = np.full((4, 4, 3), 100, np.uint8)
    for seed in range(30):
        found = photometric_distortion(grey, np.random.default_rng(seed))
        assert found.dtype == np.uint8
        assert (found == found[..., :1]).all()


def test_colours_change_within_their_ranges() -> None:
    values = [
        photometric_distortion(np.full((1, 1, 3), 100, np.uint8), np.random.default_rng(s))[0, 0, 0] for s in range(300)
    ]
    assert min(values) >= (100 - 32) * 0.5 - 1
    assert max(values) <= (100 + 32) * 1.5
    assert np.mean(np.array(values) == 100) == pytest.approx(0.25, abs=0.1)  # neither brightness nor contrast
    bright = [
        depth_colours(np.full((1, 1, 3), 100, np.uint8), (0.75, 1.25), np.random.default_rng(s)) for s in range(200)
    ]
    low, high = (255 * (100 / 255) ** power * factor for power, factor in ((1.1, 0.75 * 0.9), (0.9, 1.25 * 1.1)))
    assert low <= min(own.min() for own in bright)
    assert max(own.max() for own in bright) <= high
