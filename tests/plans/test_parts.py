"""Finished parts come back to the last bit, and nothing half-written is taken for one."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from diffusionlens.analysis.run import Measurement
from diffusionlens.material import ModelMaterial, NormHistogram, ProvenanceMap, SamplePicture
from diffusionlens.per_image import PerImage
from diffusionlens.plans.parts import read_part, save_part
from diffusionlens.results import PER_IMAGE_COLUMNS, Row, to_frame

ODD = 'NA,"quoted"\n\udcff'  # what a file name may hold


def measurement() -> Measurement:
    rng = np.random.default_rng(0)
    rows = [
        Row("pib", "pib", 100 / 3, 3, 1, token="cls", low=float(np.nextafter(0.1, 1)), high=1e-300),
        Row("norms", "norm_max", 1 / 3, 9, 0, head="mean", token=ODD),
        Row("norms", "none", float("nan"), 1),
    ]
    per_image = pd.DataFrame([("m", "d", ODD, "pib", "pib", 1, "", "NA", 1 / 3)], columns=PER_IMAGE_COLUMNS).astype(
        {"layer": "Int64"}
    )
    picture = SamplePicture(ODD, rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), np.zeros((0, 4), np.float32))
    shown = ModelMaterial(
        "m", [picture], {0: rng.normal(size=(1, 2, 2)).astype(np.float32)}, {},
        {2: NormHistogram(np.arange(3.0), np.ones(2), {"mad": 1.5})}, [],
        [ProvenanceMap("p", 1, "object", (0, 1), (8, 8), picture.image, picture.boxes, np.ones((2, 2), np.float32))],
    )  # fmt: skip
    return Measurement(
        to_frame(rows, ODD, "d"), PerImage([per_image]), [shown], {"models": [{"label": ODD}], "x": None}
    )


def _texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Texts as plain objects, whatever pandas' version makes of them."""
    return frame.astype({name: object for name in frame.columns if name not in ("layer", "n", "value", "low", "high")})


def test_back_to_the_last_bit(tmp_path: Path) -> None:
    before = measurement()
    save_part(before, tmp_path / "part")
    after = read_part(tmp_path / "part")
    assert after is not None
    pd.testing.assert_frame_equal(after.results, _texts(before.results), check_exact=True)
    pd.testing.assert_frame_equal(after.per_image, _texts(before.per_image), check_exact=True)
    assert after.manifest == before.manifest
    one, two = before.material[0], after.material[0]
    assert two.pictures[0].name == ODD
    np.testing.assert_array_equal(two.pictures[0].image, one.pictures[0].image)
    assert two.score_maps[0].dtype == np.float32
    np.testing.assert_array_equal(two.score_maps[0], one.score_maps[0])
    assert two.norm_histograms[2].thresholds == {"mad": 1.5}
    assert two.provenance_maps[0].patch == (0, 1)


@pytest.mark.parametrize("name", ["results.csv", "per_image.csv", "part.json", "material.npz"])
def test_damage_is_no_part(tmp_path: Path, name: str) -> None:
    assert read_part(tmp_path / "part") is None
    save_part(measurement(), tmp_path / "part")
    (tmp_path / "part" / name).write_bytes(b"\x00[")
    assert read_part(tmp_path / "part") is None
    save_part(measurement(), tmp_path / "part")  # takes its place
    assert read_part(tmp_path / "part") is not None
