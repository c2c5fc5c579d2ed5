"""Analyses of one's own: registered, measured, in tables, figures and on the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from diffusionlens import InputError, measure
from diffusionlens.analysis.diagnostic import Column, Diagnostic
from diffusionlens.analysis.registry import DIAGNOSTICS, STANDARD, parse_analyses, register
from diffusionlens.capture import Trace
from diffusionlens.data import Batch


class Planted(Diagnostic):
    """The index of the picture, plus ten times the layer."""

    name = "planted"

    @property
    def columns(self) -> Sequence[Column]:
        return [Column("index", layer, token="patch") for layer in self.context.layers]

    def update(self, trace: Trace, batch: Batch) -> None:
        index = torch.tensor([float(sample.index) for sample in batch.samples])
        self.record(batch, torch.stack([index + 10 * layer for layer in self.context.layers], dim=1))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    DIAGNOSTICS.pop("planted", None)


def test_an_added_analysis_is_measured(tmp_path: Path) -> None:
    register(Planted)
    out = tmp_path / "out"
    measured = measure(
        "timm:vit_tiny_patch16_224?pretrained=false&img_size=32",
        "scenes:?n=5",
        out,
        analyses="planted",
        layers="0,2,12",
    )
    rows = measured.measurement.results
    assert rows["value"].tolist() == [2, 22, 122]  # the mean index of five pictures is 2
    assert rows["n"].tolist() == [5, 5, 5]
    assert (out / "figures" / "added_by_layer.png").is_file()
    assert "122" in (out / "tables" / "planted.md").read_text(encoding="utf-8")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "Analyses that were added" in page
    assert "planted, by layer" in page


def test_it_is_not_among_the_standard_ones() -> None:
    register(Planted)
    assert parse_analyses("planted") == ["planted"]
    assert "planted" not in STANDARD
    assert parse_analyses("standard") == list(STANDARD)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pib", "is an analysis of diffusionlens"),
        ("My Analysis", "wanted small letters"),
        (None, "wanted small letters"),
    ],
)
def test_names_that_are_refused(name: str | None, line: str) -> None:
    kind = type("Other", (Planted,), {"name": name})
    with pytest.raises(InputError, match=line):
        register(kind)


def test_what_is_no_diagnostic_is_refused() -> None:
    with pytest.raises(InputError, match="no subclass of Diagnostic"):
        register(int)  # type: ignore[type-var]
