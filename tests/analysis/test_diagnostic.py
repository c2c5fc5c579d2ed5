"""Every diagnostic keeps torchmetrics' contract: reset, update, compute, forward, merge_state."""

import pandas as pd
import pytest
import torch
from torch import nn

from diffusionlens.analysis.diagnostic import Context, Diagnostic
from diffusionlens.analysis.measure import feed, needed_layers
from diffusionlens.analysis.registry import DIAGNOSTICS, make
from diffusionlens.data.open_data import open_data
from diffusionlens.data.sample import Batch
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.models.load import load_model
from diffusionlens.results import COLUMNS
from tests.analysis.planted import collate

PICTURES = 12
SOURCE = open_data(f"scenes:?n={PICTURES}&size=48")
BACKBONE = load_model("timm:vit_tiny_patch16_224?pretrained=false&img_size=48")
TRANSFORM = FitTransform(BACKBONE.size, (0.5,) * 3, (0.5,) * 3, "crop", "bilinear")
CONTEXT = Context(
    backbone=BACKBONE,
    layers=(0, 3, 12),
    indices=tuple(range(PICTURES)),
    provides=SOURCE.provides,
    seed=0,
    samples=(0, 3, 6, 9),
    picture=lambda index: TRANSFORM(SOURCE.open(index), index),
)


def made(name: str) -> Diagnostic:
    options = {"folds": 2} if name == "diffusion" else {"pictures": 4} if name == "explorer" else {}
    found = make(name, CONTEXT, DIAGNOSTICS[name].options_type(**options))
    assert isinstance(found, Diagnostic)
    return found


def batch(pictures: range) -> Batch:
    return collate([TRANSFORM(SOURCE.open(index), index) for index in pictures])


def fed(diagnostic: Diagnostic, pictures: range) -> Diagnostic:
    feed([diagnostic], BACKBONE, batch(pictures), needed_layers(CONTEXT), torch.device("cpu"))
    diagnostic.finish()
    return diagnostic


def told(diagnostic: Diagnostic) -> tuple[pd.DataFrame, list[pd.DataFrame], dict[str, int], set[object]]:
    values = [pd.DataFrame(found, index=diagnostic.order) for _, found in diagnostic.per_image()]
    return pd.DataFrame(map(vars, diagnostic.table())), values, diagnostic.dropped_pictures, set(diagnostic.kept)


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_reset_forgets_everything(name: str) -> None:
    used = fed(made(name), range(6))
    before = told(used)
    used.reset()
    fresh = made(name)
    assert told(used)[2:] == told(fresh)[2:] == ({}, set())
    found, wanted = told(fed(used, range(6, PICTURES))), told(fed(fresh, range(6, PICTURES)))
    pd.testing.assert_frame_equal(found[0], wanted[0])
    for own, other in zip(found[1], wanted[1], strict=True):
        pd.testing.assert_frame_equal(own, other)
    assert found[2:] == wanted[2:]
    assert not before[0].equals(found[0]) or name == "explorer"


def test_compute_is_the_table() -> None:
    norms = fed(made("norms"), range(4))
    table = norms.compute()
    assert list(table.columns) == COLUMNS[2:]
    row = table[(table["metric"] == "norm_max") & (table["layer"] == 12) & (table["token"] == "raw")]
    largest = BACKBONE.model.forward_intermediates(batch(range(4)).images, indices=[11], intermediates_only=True)[0]
    assert row["value"].item() == pytest.approx(float(largest.norm(dim=1).max()), rel=1e-5)
    assert row["n"].item() == 4 * 9


class Counted(Diagnostic):
    name = "counted"
    columns = ()

    def update(self, trace: object, batch: Batch) -> None:  # type: ignore[override]
        self.record(batch, torch.zeros(len(batch), 0))


def test_forward_loses_no_picture() -> None:
    """torchmetrics' own forward resets in between, and would take the shelves with it."""
    counted = Counted(CONTEXT, Counted.options_type())
    for pictures in (range(2), range(2, 5)):
        counted(nn.Identity(), batch(pictures))
    assert counted.order == [0, 1, 2, 3, 4]
