"""Erasing and swapping: nothing outside the box changes, and what is inside is what was said."""

import numpy as np
import pytest
import torch
from scipy.ndimage import laplace

from diffusionlens.analysis.diffusion.background import RINGS, background, ring_masks, rings
from diffusionlens.analysis.diffusion.erase import BORDER, boxed_pixels, erase
from diffusionlens.analysis.diffusion.spread import find_donor
from diffusionlens.analysis.diffusion.swap import main_box, swap
from diffusionlens.data.sample import Sample
from tests.analysis.planted import PATCH, planted_batch

IMAGE = torch.rand(3, 40, 48, generator=torch.Generator().manual_seed(0))
BOXES = torch.tensor([[10.3, 8, 25, 20.5], [30, 0, 48, 12], [20, 18, 28, 30]])
GRID = (10, 12)


def sample(*boxes: list[float], **values: object) -> Sample:
    made = planted_batch(1, GRID, [torch.tensor(boxes)]).samples[0]
    return Sample(**(made.__dict__ | values))  # type: ignore[arg-type]


@pytest.mark.parametrize("fill", ["mean", "blur", "inpaint"])
def test_only_the_boxes_change(fill: str) -> None:
    erased = erase(IMAGE, BOXES, fill)  # type: ignore[arg-type]
    inside = boxed_pixels(BOXES, (40, 48))
    assert inside[8:21, 10:25].all()  # every pixel that a box touches
    assert torch.equal(erased[:, ~inside], IMAGE[:, ~inside])
    assert (erased[:, inside] != IMAGE[:, inside]).float().mean() > 0.99
    assert torch.isfinite(erased).all()


def test_the_mean_is_that_of_the_frame_and_of_no_other_object() -> None:
    erased = erase(IMAGE, BOXES[:1])
    frame = torch.ones(40, 48, dtype=torch.bool)
    frame[8:21, 10:25] = False
    near = torch.zeros_like(frame)
    near[8 - BORDER : 21 + BORDER, 10 - BORDER : 25 + BORDER] = True
    torch.testing.assert_close(erased[:, 12, 12], IMAGE[:, frame & near].mean(1))
    bright = IMAGE.clone()
    bright[:, 18:30, 20:28] = 100  # another box beside it
    assert erase(bright, BOXES)[:, 12, 12].max() < 1


def test_a_plane_is_continued_exactly() -> None:
    """Harmonic filling is exact for what is harmonic; and every filled pixel is the mean of its four neighbours."""
    x, y = np.meshgrid(np.arange(48.0), np.arange(40.0))
    plane = torch.from_numpy(np.stack([x, y, 2 * x - y])).float()
    inner = torch.tensor([[10.0, 8, 25, 20], [20, 15, 30, 30]])
    torch.testing.assert_close(erase(plane, inner, "inpaint"), plane, atol=1e-3, rtol=1e-5)
    filled = erase(IMAGE, inner, "inpaint").double().numpy()
    inside = boxed_pixels(inner, (40, 48)).numpy()
    assert abs(laplace(filled[0])[inside]).max() < 1e-5


def test_a_box_in_the_corner_and_one_that_is_everything() -> None:
    corner = torch.tensor([[0.0, 0, 20, 20]])
    assert torch.isfinite(erase(IMAGE, corner, "inpaint")).all()
    with pytest.raises(ValueError, match="whole picture"):
        erase(IMAGE, torch.tensor([[0.0, 0, 48, 40]]))


def test_a_swapped_object_stands_in_the_box_with_a_soft_edge() -> None:
    donor = torch.full((3, 40, 48), 5.0)
    box, from_box = torch.tensor([10.0, 8, 30, 28]), torch.tensor([3.0, 4, 20, 9])
    swapped = swap(IMAGE, box, donor, from_box)
    inside = boxed_pixels(box[None], (40, 48))
    assert torch.equal(swapped[:, ~inside], IMAGE[:, ~inside])
    torch.testing.assert_close(swapped[:, 18, 20], torch.full((3,), 5.0))
    middle = swapped[0, 18, 10:20]
    assert (middle.diff() >= 0).all()  # rises from the filled box to the object
    assert middle[0] < 2.5 < middle[2]


def test_the_main_box_is_the_largest_that_counts() -> None:
    thing = sample([0, 0, 40, 40], [0, 0, 10, 10], [2, 2, 14, 14])
    assert main_box(thing).tolist() == [0, 0, 40, 40]  # type: ignore[union-attr]
    crowd = Sample(**(thing.__dict__ | {"crowd": torch.tensor([True, False, False])}))
    assert main_box(crowd).tolist() == [2, 2, 14, 14]  # type: ignore[union-attr]
    assert main_box(Sample(**(thing.__dict__ | {"difficult": torch.ones(3, dtype=torch.bool)}))) is None


def test_no_pixel_of_a_background_patch_is_in_a_box() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, y, width, height = rng.uniform([0, 0, 1, 1], [40, 30, 8, 10])
        thing = sample([x, y, x + width, y + height])
        touched = boxed_pixels(thing.boxes, (40, 48)).unflatten(0, (10, 4)).unflatten(2, (12, 4)).any(3).any(1)
        mask = background(thing, GRID, PATCH)
        assert not (mask & touched).any()
        centre = torch.stack(torch.meshgrid(torch.arange(10) * 4 + 2, torch.arange(12) * 4 + 2, indexing="ij"), -1)
        beyond = (
            (centre[..., 0] < y - 4)
            | (centre[..., 0] >= y + height + 4)
            | (centre[..., 1] < x - 4)
            | (centre[..., 1] >= x + width + 4)
        )
        assert torch.equal(mask, beyond)
        ring = rings(thing, thing.boxes[0], GRID, PATCH)
        assert torch.equal(ring == 0, touched)


def test_rings_are_counted_in_patches_and_leave_out_other_objects() -> None:
    thing = sample([16.0, 16, 24, 24], [0, 0, 8, 8])
    ring = rings(thing, thing.boxes[0], GRID, PATCH)
    assert ring[4:6, 4:6].sum() == 0
    assert ring[3, 3] == ring[6, 6] == ring[4, 3] == 1
    assert ring[9, 11] == 6
    assert ring[0:2, 0:2].sum() == 0
    masks = dict(zip(RINGS, ring_masks(ring), strict=True))
    assert masks["all"].sum() == 120 - 4 - 4
    assert sum(int(mask.sum()) for name, mask in masks.items() if name != "all") == masks["all"].sum()


def test_a_donor_has_another_label_and_depends_on_the_picture_alone() -> None:
    batch = planted_batch(12, GRID, [torch.tensor([[0.0, 0, 8, 8]])] * 12, labels=[place % 3 for place in range(12)])

    def open_one(index: int) -> Sample:
        return batch.samples[index]

    drawn = [find_donor(one, range(12), open_one, seed=0) for one in batch.samples]
    for one, found in zip(batch.samples, drawn, strict=True):
        assert found is not None
        assert found[0].label != one.label
    again = find_donor(batch.samples[5], range(12), open_one, seed=0)
    assert again is not None
    assert drawn[5] is not None
    assert again[0].index == drawn[5][0].index
    bare = planted_batch(3, GRID)
    assert find_donor(bare.samples[0], range(3), lambda index: bare.samples[index], seed=0) is None
