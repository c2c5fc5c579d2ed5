"""DINO's and DINOv2's linear classifiers: what heads read, how they learn, from end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from diffusionlens import probe
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.tasks.linear_protocol import head_input, input_names
from diffusionlens.data.sample import Picture
from diffusionlens.data.transforms.random_resized_crops import RandomResizedCrops
from diffusionlens.errors import InputError
from diffusionlens.results import read_table

MODEL = "t=timm:vit_tiny_patch16_224?pretrained=false&img_size=32"
TEST, TRAIN = "test=scenes:?n=8&seed=1", "train=scenes:?n=16"


def test_what_heads_read_is_what_dinov2_puts_side_by_side() -> None:
    """CLS of the last n blocks and, with avgpool, the mean patch of the last: in any order, the same numbers."""
    cls, mean = torch.randn(3, 4, 5), torch.randn(3, 5)
    vectors = torch.cat([cls, mean[:, None]], 1)
    names = input_names(recipe_for("classification", "dinov2", []))  # type: ignore[arg-type]
    assert names == ("cls blocks=1", "cls+mean blocks=1", "cls blocks=4", "cls+mean blocks=4")
    expected = [
        cls[:, 0],
        torch.cat([cls[:, 0], mean], 1),
        cls.flatten(1),
        torch.cat([cls.flatten(1), mean], 1),
    ]
    for name, wanted in zip(names, expected, strict=True):
        torch.testing.assert_close(head_input(vectors, name), wanted)


def test_the_presets_are_the_published_ones() -> None:
    dino, dinov2 = (recipe_for("classification", name, []) for name in ("dino", "dinov2"))
    assert (dino.rates, dino.blocks, dino.pools, dino.epochs) == ((1e-3,), (4,), ("cls",), 100)  # type: ignore[attr-defined]
    assert dino.steps(1_281_167) == 125_114  # type: ignore[attr-defined]  # 100 x 1,281,167 / 1,024
    assert len(dinov2.rates) == 13
    assert dinov2.steps(1_281_167) == 12_500  # type: ignore[attr-defined]
    for preset in ("dino", "dinov2"):
        with pytest.raises(InputError, match="--layers and --tokens go with --preset fast"):
            probe("classification", MODEL, TEST, TRAIN, preset=preset, layers="last")
    with pytest.raises(InputError, match="--preset dino is not for depth; wanted fast or dinov2"):
        recipe_for("depth", "dino", [])


@pytest.mark.slow
def test_a_head_is_torchs_own(tmp_path: Path) -> None:
    """One rate, no crops: the accuracy of nn.Linear with torch's SGD and cosine on tokens taken out with timm's own getter."""
    from diffusionlens.data import open_data
    from diffusionlens.data.transforms.fit import FitTransform
    from diffusionlens.models import load_model

    options = ["augment=false", "epochs=6", "batch_size=16", "rates=0.5"]
    backbone = load_model(MODEL)
    found = probe("classification", backbone, TEST, TRAIN, tmp_path / "out", preset="dino", seeds=1, options=options)
    assert found is not None
    assert found.measurement.manifest["backbone_forwards"] == 24
    rows = read_table(tmp_path / "out" / "results.csv")
    assert rows["token"].tolist() == ["cls blocks=4"]
    assert "Linear heads reach" in (tmp_path / "out" / "index.html").read_text()
    fit = FitTransform(backbone.size, backbone.preprocessing.mean, backbone.preprocessing.std)
    features, labels = [], []
    for spec in (TRAIN, TEST):
        source = open_data(spec)
        pictures = [fit(source.open(place), place) for place in range(len(source))]
        with torch.no_grad():
            blocks = backbone.model.get_intermediate_layers(  # type: ignore[operator]
                torch.stack([one.image for one in pictures]), n=4, return_prefix_tokens=True, norm=True
            )
        features.append(torch.cat([prefix[:, 0] for _, prefix in reversed(blocks)], 1))
        labels.append(torch.tensor([one.label for one in pictures]))
    head = nn.Linear(features[0].shape[1], 8)
    with torch.no_grad():
        start = 0.01 * torch.randn(8, 5 * 192, generator=torch.Generator().manual_seed(0))
        head.weight.copy_(start[:, : 4 * 192])
        head.bias.zero_()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5 * 16 / 256, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    for _ in range(6):  # the batch is the whole set, so that its order is nothing
        optimizer.zero_grad()
        functional.cross_entropy(head(features[0]), labels[0]).backward()
        optimizer.step()
        schedule.step()
    expected = 100 * float((head(features[1]).argmax(1) == labels[1]).float().mean())
    assert rows["value"].tolist() == [pytest.approx(expected)]


@pytest.mark.slow
def test_the_whole_protocol_with_crops() -> None:
    options = ["iterations=3", "batch_size=4", "rates=1e-3,1e-1"]
    found = probe("classification", MODEL, TEST, TRAIN, preset="dinov2", seeds=2, options=options)
    assert found is not None
    rows = found.measurement.results
    assert rows["token"].tolist() == ["cls blocks=1", "cls+mean blocks=1", "cls blocks=4", "cls+mean blocks=4"]
    assert set(rows["n"]) == {8}
    forwards = found.measurement.manifest["models"][0]["probe"]["forwards"]
    assert forwards == {"learned": 24, "held out": 2, "scored": 8}
    with pytest.raises(InputError, match="no CLS token"):
        probe(
            "classification",
            "timm:vit_medium_patch16_reg4_gap_256?pretrained=false&img_size=64",
            TEST,
            TRAIN,
            preset="dino",
        )


def test_resized_crops_show_a_part_of_the_right_size_and_shape() -> None:
    """Red is the column and green the row: a crop's corners tell its place, area and aspect."""
    rows, columns = np.indices((100, 160))
    image = Image.fromarray(np.stack([columns, rows, 0 * rows], -1).astype(np.uint8))
    crops = RandomResizedCrops((32, 32), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), seed=0)
    areas, aspects, mirrored = [], [], 0
    for index in range(200):
        found = crops(Picture(image, "p", label=1), index).image * 255
        across = float(found[0, 16, 28] - found[0, 16, 3]) * 32 / 25
        down = float(found[1, 28, 16] - found[1, 3, 16]) * 32 / 25
        mirrored += across < 0
        areas.append(abs(across) * down / 16_000)
        aspects.append(abs(across) / down)
    assert 80 <= mirrored <= 120
    assert 0.07 < min(areas) < 0.12
    assert 0.75 < max(areas) < 0.86  # no window of aspect 4/3 has more of 160 x 100
    assert 0.7 < min(aspects) < 0.8
    assert 1.25 < max(aspects) < 1.45
    assert np.mean(np.log(aspects)) == pytest.approx(0, abs=0.1)  # log-uniform
