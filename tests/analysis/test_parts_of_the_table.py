"""Tables and per-picture values are made in parts, so that memory stays bounded; the parts change nothing."""

import io

import pandas as pd
import pytest

import diffusionlens
from diffusionlens.analysis import diagnostic
from diffusionlens.analysis.run import Measurement
from diffusionlens.results import PER_IMAGE_COLUMNS

MODEL = "timm:vit_tiny_patch16_224?pretrained=false&img_size=48"


def measured(**options: object) -> Measurement:
    found = diffusionlens.measure(MODEL, "scenes:?n=5&size=48", layers="0,3,7", **options)  # type: ignore[arg-type]
    assert found is not None
    return found.measurement


def test_series_by_series_or_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured()
    monkeypatch.setattr(diagnostic, "NUMBERS", 1)
    parts = measured()
    assert len(whole.results) > 100
    pd.testing.assert_frame_equal(parts.results, whole.results, rtol=1e-12)
    pd.testing.assert_frame_equal(parts.per_image, whole.per_image)
    assert len(parts.pictures.parts) > len(whole.pictures.parts)


def test_what_is_written_is_the_table() -> None:
    """Series by series, as pandas writes the whole."""
    found = measured()
    frame = found.per_image
    assert list(frame.columns) == PER_IMAGE_COLUMNS
    written = io.StringIO()
    found.pictures.write(written)
    assert written.getvalue() == frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    again = pd.read_csv(io.StringIO(written.getvalue()), keep_default_na=False)
    assert len(again) == len(frame)
    assert set(again["analysis"]) == {"pib", "norms", "sparsity", "similarity"}
    assert not set(again["head"]) - {"", "mean"}
