"""Boxes, masks and depth go exactly where the picture goes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from diffusionlens.data.sample import Picture, UnreadablePicture
from diffusionlens.data.transforms.fit import Fit, FitTransform
from diffusionlens.errors import InputError

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def painted(width: int, height: int, box: tuple[int, int, int, int]) -> Picture:
    """A black picture with the box in white, and the same as mask and depth."""
    values = np.zeros((height, width), np.uint8)
    x0, y0, x1, y1 = box
    values[y0:y1, x0:x1] = 255
    return Picture(
        Image.fromarray(values).convert("RGB"),
        "p",
        label=3,
        boxes=torch.tensor([box], dtype=torch.float32),
        category=torch.tensor([7]),
        crowd=torch.tensor([False]),
        difficult=torch.tensor([False]),
        mask=torch.from_numpy(values // 255).long(),
        depth=torch.from_numpy(values / 100.0).float(),
    )


def test_crop_is_torchvisions_evaluation_transform() -> None:
    rng = np.random.default_rng(0)
    for width, height in ((500, 375), (375, 500), (301, 299), (64, 64), (90, 400)):
        image = Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
        oracle = v2.Compose(
            [
                v2.Resize(256, interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
                v2.CenterCrop(224),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )
        sample = FitTransform((224, 224), MEAN, STD)(Picture(image, "p"), 5)
        torch.testing.assert_close(sample.image, oracle(image).as_subclass(torch.Tensor), rtol=0, atol=1e-6)
        assert (sample.index, sample.original_size) == (5, (height, width))


@given(
    width=st.integers(20, 300),
    height=st.integers(20, 300),
    corner=st.tuples(st.floats(0, 0.7), st.floats(0, 0.7)),
    extent=st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)),
    size=st.sampled_from([(64, 64), (64, 96), (112, 48)]),
    fit=st.sampled_from(["crop", "squash", "pad"]),
)
@settings(max_examples=80, deadline=None)
def test_box_and_mask_follow_the_picture(width, height, corner, extent, size, fit: Fit) -> None:  # type: ignore[no-untyped-def]
    """The white pixels of the transformed picture are where the box and the mask say, to within a pixel of blur."""
    x0, y0 = int(corner[0] * width), int(corner[1] * height)
    x1, y1 = min(x0 + max(int(extent[0] * width), 4), width), min(y0 + max(int(extent[1] * height), 4), height)
    sample = FitTransform(size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), fit, "bilinear")(
        painted(width, height, (x0, y0, x1, y1)), 0
    )
    assert sample.image.shape == (3, *size)
    assert sample.mask is not None
    assert sample.mask.shape == size
    assert sample.objects == 1
    white = (sample.image[0] > 0.5).numpy()
    if len(sample.boxes) == 0:
        assert white.sum() <= 2 * sum(size)  # at most a blurred edge
        return
    left, top, right, bottom = sample.boxes[0].tolist()
    assert 0 <= left < right <= size[1]
    assert 0 <= top < bottom <= size[0]
    inner = np.zeros(size, bool)
    ends = max(int(bottom - 1.5), 0), max(int(right - 1.5), 0)  # of a sliver at the edge nothing is left
    inner[int(np.ceil(top + 1.5)) : ends[0], int(np.ceil(left + 1.5)) : ends[1]] = True
    outer = np.zeros(size, bool)
    outer[max(int(top - 1.5), 0) : int(np.ceil(bottom + 1.5)), max(int(left - 1.5), 0) : int(np.ceil(right + 1.5))] = (
        True
    )
    assert white[inner].all()
    assert not white[~outer].any()
    counted = sample.mask.numpy() == 1
    assert counted[inner].all()
    assert not counted[~outer].any()


def test_exact_numbers() -> None:
    """400 x 200 to a crop of 112: scaled to 256 x 128, cut from (72, 8)."""
    picture = painted(400, 200, (100, 50, 300, 150))
    sample = FitTransform((112, 112), MEAN, STD)(picture, 0)
    assert sample.boxes.tolist() == [[0.0, 24.0, 112.0, 88.0]]
    assert sample.box_area.tolist() == pytest.approx([0.25])
    squashed = FitTransform((100, 100), MEAN, STD, "squash")(picture, 0)
    assert squashed.boxes.tolist() == [[25.0, 25.0, 75.0, 75.0]]
    padded = FitTransform((100, 100), MEAN, STD, "pad")(picture, 0)
    assert padded.boxes.tolist() == [[25.0, 37.5, 75.0, 62.5]]
    assert (padded.image[:, :25] == 0).all()
    assert (padded.mask[:25] == 255).all()
    assert torch.isnan(padded.depth[:25]).all()
    assert not torch.isnan(padded.depth[25:75]).any()


def test_a_box_outside_the_crop_is_gone_but_counted() -> None:
    sample = FitTransform((56, 56), MEAN, STD)(painted(400, 100, (0, 0, 40, 100)), 0)
    assert len(sample.boxes) == len(sample.category) == len(sample.crowd) == len(sample.box_area) == 0
    assert sample.objects == 1


@pytest.mark.parametrize("size", [32, 96, 98, 112, 225, 448, 518])
def test_crop_of_every_size_is_torchvisions(size: int) -> None:
    rng = np.random.default_rng(size)
    image = Image.fromarray(rng.integers(0, 255, (211, 307, 3), dtype=np.uint8))
    mode = v2.InterpolationMode.BICUBIC
    oracle = v2.CenterCrop(size)(v2.Resize(int(size * 256 / 224), interpolation=mode, antialias=True)(image))
    sample = FitTransform((size, size), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))(Picture(image, "p"), 0)
    assert (sample.image.mul(255).round().byte().permute(1, 2, 0).numpy() == np.asarray(oracle)).all()


@given(width=st.integers(1, 900), height=st.integers(1, 900), size=st.sampled_from([96, 112, 224]))
@settings(max_examples=150, deadline=None)
def test_the_box_of_the_whole_picture_is_exact(width: int, height: int, size: int) -> None:
    """No rounding may cut a hair off it, nor leave a hair of a box that ends where the crop begins."""
    transform = FitTransform((size, size), MEAN, STD, "squash")
    boxes = torch.tensor([[0.0, 0.0, width, height]])
    moved, kept = transform._boxes(boxes, (height, width), transform._placement(height, width))
    assert moved.tolist() == [[0, 0, size, size]]
    assert kept.tolist() == [True]


def test_a_box_that_ends_at_the_edge_of_the_crop_leaves_no_sliver() -> None:
    """640 x 320 becomes 512 x 256, of which the columns 144 .. 368 stay: 180 .. 460 of the original."""
    for scale in (1, 7, 13):
        width, height = 640 * scale, 320 * scale
        edge = 180 * scale  # 144 / 512 of the width
        sample = FitTransform((224, 224), MEAN, STD)._boxes(
            torch.tensor([[0.0, 0, edge, height], [width - edge, 0, width, height]]),
            (height, width),
            FitTransform((224, 224), MEAN, STD)._placement(height, width),
        )
        assert sample[1].tolist() == [False, False]


def test_a_needle_is_named_before_it_fills_the_memory() -> None:
    with pytest.raises(UnreadablePicture, match=r"1x3000 is too narrow: crop would make it 256x768000"):
        FitTransform((224, 224), MEAN, STD)(Picture(Image.new("RGB", (1, 3000)), "needle"), 0)
    padded = FitTransform((224, 224), MEAN, STD, "pad")(Picture(Image.new("RGB", (1, 3000)), "needle"), 0)
    assert padded.image.shape == (3, 224, 224)


def test_options_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="'fill' is no way to fit a picture; wanted crop, squash, pad"):
        FitTransform((8, 8), MEAN, STD, "fill")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'cubic' is no interpolation"):
        FitTransform((8, 8), MEAN, STD, interpolation="cubic")


def test_maps_take_the_value_under_each_pixels_centre() -> None:
    values = torch.arange(30 * 50).reshape(30, 50)
    picture = Picture(Image.new("RGB", (50, 30)), "p", mask=values, depth=values.float())
    sample = FitTransform((12, 16), MEAN, STD, "squash")(picture, 0)
    rows, columns = ((np.arange(12) + 0.5) * 30 / 12).astype(int), ((np.arange(16) + 0.5) * 50 / 16).astype(int)
    expected = values[rows][:, columns]
    assert sample.mask is not None
    assert sample.depth is not None
    assert torch.equal(sample.mask, expected)
    assert torch.equal(sample.depth, expected.float())
