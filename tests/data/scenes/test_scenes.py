"""Scenes: deterministic, exact in their annotations, and saying of the class what `context` allows."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import rgb_to_hsv
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler

from diffusionlens.data import open_data
from diffusionlens.data.scenes import render as rendering
from diffusionlens.data.scenes.source import SceneOptions, Scenes, render
from diffusionlens.errors import InputError


def test_a_picture_depends_on_seed_and_index_only() -> None:
    options = SceneOptions(n=10)
    forward = [render(options, index).image for index in range(6)]
    backward = [render(SceneOptions(n=999), index).image for index in reversed(range(6))][::-1]
    assert all((a == b).all() for a, b in zip(forward, backward, strict=True))
    others = [*forward, render(SceneOptions(seed=1), 0).image]
    assert len({image.tobytes() for image in others}) == 7


def test_the_very_bytes() -> None:
    """Numbers can be compared between machines and versions: whoever changes this digest changes every published one."""
    digest = hashlib.sha256()
    for options in (SceneOptions(), SceneOptions(size=96, objects=3, occluders=4, context=0.5)):
        for index in range(20):
            scene = render(options, index)
            for values in (scene.image, scene.mask, scene.depth, scene.boxes, scene.categories):
                digest.update(np.ascontiguousarray(values).tobytes())
    assert digest.hexdigest()[:16] == "d74c7271c71cd357"


@given(
    size=st.sampled_from([32, 48, 64, 100]),
    classes=st.integers(2, 8),
    objects=st.integers(1, 4),
    occluders=st.integers(0, 6),
    context=st.floats(0, 1),
    index=st.integers(0, 10_000),
)
@settings(max_examples=80, deadline=None)
def test_annotations_are_exact(size, classes, objects, occluders, context, index) -> None:  # type: ignore[no-untyped-def]
    options = SceneOptions(size=size, classes=classes, objects=objects, occluders=occluders, context=context)
    scene = render(options, index)
    assert scene.image.shape == (size, size, 3)
    assert scene.label == scene.categories[0] < classes
    assert 1 <= len(scene.boxes) == len(scene.categories) <= objects
    for category in set(scene.categories.tolist()):
        own = scene.boxes[scene.categories == category]
        rows, columns = np.nonzero(scene.mask == category + 1)
        # The boxes of a class together end where the visible pixels of the class end.
        assert [own[:, 0].min(), own[:, 1].min()] == [columns.min(), rows.min()]
        assert [own[:, 2].max(), own[:, 3].max()] == [columns.max() + 1, rows.max() + 1]
    assert set(np.unique(scene.mask)) == {0} | set((scene.categories + 1).tolist())
    background = scene.depth[(scene.mask == 0) & (scene.depth > 5.5)]
    assert scene.depth[scene.mask > 0].max() < 5.5 < background.min()
    assert scene.depth.min() > 1


def test_one_object_has_the_box_of_its_mask() -> None:
    for index in range(50):
        scene = render(SceneOptions(), index)
        rows, columns = np.nonzero(scene.mask)
        assert scene.boxes.tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]


def test_classes_are_balanced() -> None:
    labels = [render(SceneOptions(size=32), index).label for index in range(1600)]
    counts = np.bincount(labels, minlength=8)
    assert abs(counts - 200).max() < 4 * np.sqrt(200)


def background_facts(context: float, count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """What the pixels away from the objects look like: colours, contrast, and where their frequencies lie."""
    facts, labels = [], []
    for index in range(count):
        scene = render(SceneOptions(context=context, occluders=0), index)
        away = scene.mask == 0
        grey = scene.image.mean(-1)
        colour = scene.image[away].mean(0)
        down = np.abs(np.diff(grey, axis=0))[away[1:] & away[:-1]]
        right = np.abs(np.diff(grey, axis=1))[away[:, 1:] & away[:, :-1]]
        steps = [down, right]
        shares = [quantile for step in steps for quantile in np.quantile(step, [0.25, 0.5, 0.75, 0.95, 0.99])]
        levels = np.quantile(grey[away] - grey[away].mean(), [0.02, 0.25, 0.5, 0.75, 0.98])
        facts.append(
            [*colour / colour.sum(), *shares, *levels, (np.abs(grey[away] - grey[away].mean()) ** 4).mean() ** 0.25]
        )
        labels.append(scene.label)
    return np.array(facts), np.array(labels)


@pytest.mark.slow
def test_the_context_knob() -> None:
    """A classifier that sees the background only: at chance for context 0, far above it for context 1."""
    score = {}
    for context in (0.0, 1.0):
        facts, labels = background_facts(context)
        model = LogisticRegression(max_iter=3000, C=10)
        score[context] = cross_val_score(model, StandardScaler().fit_transform(facts), labels, cv=5).mean()
    error = np.sqrt(0.125 * 0.875 / 600)
    assert abs(score[0.0] - 0.125) < 3 * error
    assert score[1.0] > 0.125 + 15 * error


def test_data_string() -> None:
    source = open_data("s=scenes:?n=5&seed=3&size=48&context=0.5&classes=4")
    assert (len(source), source.label, len(source.classes)) == (5, "s", 4)
    picture = source.open(2)
    assert picture.image.size == (48, 48)
    assert picture.mask is not None
    assert picture.depth is not None
    assert source.name(2) == picture.name == "scene-3-000002"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("n=0", "wanted a whole number from 1"),
        ("context=2", "wanted a number from 0 to 1"),
        ("size=x", "wanted a whole number from 32 to 512"),
        ("size=64.5", "wanted a whole number"),
        ("contxt=1", "did you mean 'context'"),
        ("context=nan", "wanted a number from 0 to 1"),
    ],
)
def test_wrong_options(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_data(f"scenes:?{query}")
    with pytest.raises(InputError, match="have no folder"):
        open_data("scenes:folder")


@pytest.mark.parametrize("least_share", [0.5, 0.95])
def test_no_background_pixel_knows_the_class(monkeypatch: pytest.MonkeyPatch, least_share: float) -> None:
    """The same scene with another class: what is outside both objects is the same, byte for byte (context 0).

    Also where many occluders have to stand behind the objects, as many as the class's shape asks for.
    """
    monkeypatch.setattr(rendering, "_LEAST_SHARE", least_share)
    options = SceneOptions(occluders=6)
    for index in range(60):
        one, other = (render(options, index, label=label) for label in (index % 8, (index + 1 + index // 8) % 8))
        outside = (one.mask == 0) & (other.mask == 0)
        assert outside.mean() > 0.3
        assert (one.image[outside] == other.image[outside]).all()
        assert (one.image != other.image).any() == (one.label != other.label)


@pytest.mark.parametrize("context", [0.3, 1.0])
def test_context_is_the_share_of_pictures_whose_background_follows_the_class(context: float) -> None:
    options, count, changed = SceneOptions(context=context, size=32, occluders=0), 300, 0
    for index in range(count):
        one, other = (render(options, index, label=label) for label in (0, 7))
        outside = (one.mask == 0) & (other.mask == 0)
        changed += bool((one.image[outside] != other.image[outside]).any())
        assert (one.depth[outside] == other.depth[outside]).all()  # nothing but the texture follows
    assert abs(changed / count - context) <= 4 * np.sqrt(context * (1 - context) / count)


def test_every_box_surrounds_the_pixels_at_its_objects_distance() -> None:
    """Every object has a distance of its own, which tells its pixels apart from those of others of its class."""
    several = 0
    for index in range(120):
        scene = render(SceneOptions(objects=4, occluders=4), index)
        found = set()
        for distance in np.unique(scene.depth[scene.mask > 0]):
            rows, columns = np.nonzero(scene.depth == distance)
            (value,) = np.unique(scene.mask[rows, columns])
            found.add((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, value - 1))
        placed = {(*box, category) for box, category in zip(scene.boxes, scene.categories, strict=True)}
        assert found == placed
        several += len(placed) > 2
    assert several > 100


def test_what_is_added_is_nearer_than_what_it_covers() -> None:
    """Occluders and further objects only ever cover, and leave the main object half of its pixels at least."""
    covered = 0
    for index in range(80):
        bare = render(SceneOptions(occluders=0), index)
        full = render(SceneOptions(occluders=6, objects=3), index)
        assert (full.depth <= bare.depth).all()
        main = bare.depth[bare.mask > 0].max()
        lost = (bare.mask > 0) & (full.depth != main)
        assert (full.depth[lost] < main).all()
        assert lost.sum() <= 0.5 * (bare.mask > 0).sum()
        assert full.label == bare.label == full.categories[0]
        covered += bool(lost.any())
    assert covered > 40


def test_the_larger_the_nearer() -> None:
    """A disc of 2.25 m: its share of the picture's side times its distance, as in a pinhole camera."""
    for index in range(20):
        scene = render(SceneOptions(size=256, occluders=0), index, label=0)
        left, top, right, bottom = scene.boxes[0]
        distance = scene.depth[scene.mask > 0].max()
        assert max(right - left, bottom - top) / 256 / 0.9 * distance == pytest.approx(2.25, rel=0.03)


@pytest.mark.parametrize(("label", "share"), [(0, np.pi / 4), (4, np.pi / 4 * (0.9 - 0.2) / 0.9)])
def test_disc_and_ring_fill_the_share_of_their_box_that_geometry_says(label: int, share: float) -> None:
    for index in range(5):
        scene = render(SceneOptions(size=512, occluders=0), index, label=label)
        left, top, right, bottom = scene.boxes[0]
        assert (scene.mask > 0).sum() / ((right - left) * (bottom - top)) == pytest.approx(share, rel=0.01)


def test_a_large_picture_is_the_small_one_in_more_detail() -> None:
    for index in range(16):
        small, large = (render(SceneOptions(size=size, occluders=0), index) for size in (64, 256))
        assert np.abs(large.boxes - 4 * small.boxes).max() <= 4
        averaged = large.image.reshape(64, 4, 64, 4, 3).mean((1, 3))
        assert np.abs(averaged - small.image).mean() < 20
        # Not the small one enlarged: the edge of the object runs through the inside of small pixels.
        blocks = (large.mask > 0).reshape(64, 4, 64, 4).mean((1, 3))
        assert ((blocks > 0) & (blocks < 1)).sum() > 30


# Mean and standard deviation over 3,000 pictures of the prototype with which the training settings were found.
CALIBRATION = {
    "brightness of the background": (0.319, 0.086),
    "contrast of the background": (0.053, 0.018),
    "saturation of the background": (0.104, 0.041),
    "brightness of the object": (0.257, 0.087),
    "contrast of the object": (0.139, 0.064),
    "saturation of the object": (0.721, 0.095),
    "share of the object": (0.175, 0.061),
}


def test_appearance_is_what_training_was_calibrated_on() -> None:
    rows = []
    for index in range(600):
        scene = render(SceneOptions(), index)
        image, thing = scene.image / 255, scene.mask > 0
        grey, high = image.mean(-1), image.max(-1)
        saturation = (high - image.min(-1)) / np.maximum(high, 1e-3)
        parts = [
            value
            for where in (~thing, thing)
            for value in (grey[where].mean(), grey[where].std(), saturation[where].mean())
        ]
        rows.append([*parts, thing.mean()])
    for name, values in zip(CALIBRATION, np.array(rows).T, strict=True):
        mean, spread = CALIBRATION[name]
        assert values.mean() == pytest.approx(mean, abs=4 * spread / np.sqrt(len(rows)) + 0.002), name
        assert values.std() == pytest.approx(spread, rel=0.15), name


@pytest.mark.parametrize("hues", [1, 6, 8])
def test_classes_share_the_hues(hues: int) -> None:
    """The hue of a class's light tone is within 0.15 of its place among `hues`, as matplotlib reads it."""
    for index in range(40):
        scene = render(SceneOptions(hues=hues, occluders=0), index)
        pixels = scene.image[scene.mask > 0] / 255
        brightest = pixels[pixels.max(-1) >= np.quantile(pixels.max(-1), 0.8)]
        hue = rgb_to_hsv(np.clip(brightest.mean(0), 0, 1))[0]
        place = (scene.label % hues) / hues
        away = abs((hue - place + 0.5) % 1 - 0.5)
        assert away < 0.15 / hues + 0.06  # the dark tone, which a plain object may have, adds 0.05; noise the rest


def test_a_picture_keeps_the_contract() -> None:
    source = Scenes(SceneOptions(n=3, size=80, objects=3))
    assert source.provides == {"boxes", "masks", "labels", "depth"}
    assert (len(source), len(source.classes), source.skipped) == (3, 8, [])
    picture, scene = source.open(1), source.render(1)
    assert picture.image.mode == "RGB"
    assert (np.asarray(picture.image) == scene.image).all()
    assert picture.mask is not None
    assert picture.depth is not None
    assert (picture.boxes.dtype, picture.category.dtype) == (torch.float32, torch.int64)
    assert (picture.mask.dtype, picture.depth.dtype) == (torch.int64, torch.float32)
    assert picture.mask.shape == picture.depth.shape == (80, 80)
    assert picture.boxes.shape == (len(picture.category), 4)
    assert not picture.crowd.any()
    assert len(picture.crowd) == len(picture.difficult) == len(picture.category)
    assert torch.isfinite(picture.depth).all()
    assert (picture.mask.numpy() == scene.mask).all()
    assert picture.label == scene.label


def test_an_index_outside_is_refused() -> None:
    source = Scenes(SceneOptions(n=3))
    for index in (-1, 3):
        with pytest.raises(IndexError, match="of 3"):
            source.open(index)


def test_a_source_made_in_python_names_its_data_string() -> None:
    options = SceneOptions(n=7, seed=5, size=40, classes=3, hues=2, objects=2, occluders=1, context=0.25)
    opened = open_data(Scenes(options).spec)
    assert isinstance(opened, Scenes)
    assert opened.options == options


def test_python_options_are_checked_too() -> None:
    with pytest.raises(InputError, match=r"size=16 .*wanted a whole number from 32 to 512"):
        SceneOptions(size=16)
    with pytest.raises(InputError, match=r"objects=1\.5 .*wanted a whole number from 1 to 4"):
        SceneOptions(objects=1.5)  # type: ignore[arg-type]
