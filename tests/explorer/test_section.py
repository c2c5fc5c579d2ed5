"""The part of a page that the explorer is, without a browser: inert names, one script that the policy knows, stated errors."""

import base64
import hashlib
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from diffusionlens.explorer.attention import pack_attention
from diffusionlens.explorer.cosines import pack_cosines
from diffusionlens.explorer.packed import ExploredModel, PackedLayer, PackedPicture
from diffusionlens.explorer.section import explorer_section
from diffusionlens.pages.template import Page, render
from tests.pages.test_bundle import EVIL
from tests.pages.test_bundle import Page as Tags


def model(label: str, places: tuple[int, ...] = (3, 7), *, cls: bool = True) -> ExploredModel:
    rng = np.random.default_rng(len(label))
    points = 6 + cls
    packed = io.BytesIO()
    Image.new("RGB", (8, 12)).save(packed, format="JPEG")
    pictures = {}
    for place in places:
        layers = {
            layer: PackedLayer(
                pack_cosines(rng.normal(size=(points, 5))),
                pack_attention(rng.dirichlet(np.ones(points), points)) if layer else None,
            )
            for layer in (0, 2)
        }
        pictures[place] = PackedPicture(f"{place} {EVIL}", packed.getvalue(), layers, 0.5)
    return ExploredModel(label, (3, 2), (12, 8), 2, cls, 0, "normed", True, pictures)


def page(*models: ExploredModel) -> str:
    return render(Page("Test", "A page.", [], [], [], [], [], [], explorer=explorer_section(models)))


def test_names_stay_inert_and_ids_single() -> None:
    tags = Tags(page(model(EVIL), model("</script><script>alert(1)</script>")))
    assert sum(tag == "script" for tag, _ in tags.tags) == 1 + 4 + 1  # facts, maps, the script
    assert not any("onerror" in attributes for _, attributes in tags.tags)
    ids = [attributes["id"] for _, attributes in tags.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    described = {attributes["aria-describedby"] for _, attributes in tags.tags if "aria-describedby" in attributes}
    assert described <= set(ids)


def test_the_policy_lets_in_one_script_and_nothing_from_outside() -> None:
    written = page(model("a"))
    policy = dict(Tags(written).tags)["meta"]  # the last one
    script = re.findall(r"<script>(.*?)</script>", written, re.DOTALL)
    [own] = script
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert f"script-src 'sha256-{digest}'" in str(policy["content"])
    assert "default-src 'none'" in str(policy["content"])
    plain = Tags(page())
    assert "script-src 'none'" in str(dict(plain.tags)["meta"]["content"])
    assert not any(tag == "script" for tag, _ in plain.tags)


def test_only_pictures_that_all_models_have() -> None:
    written = page(model("a", (1, 3, 7)), model("b", (3, 7, 9)))
    facts = json.loads(written.partition('id="explorer-facts">')[2].partition("</script>")[0])
    assert facts["pictures"] == [f"3 {EVIL}", f"7 {EVIL}"]
    assert [one["maps"][0][0][2:] for one in facts["models"]] == [[0, 0], [0, 0]]  # no attention in layer 0
    assert explorer_section([model("a", (1,)), model("b", (2,))]) is None
    assert explorer_section([model("a", ())]) is None


def test_the_maps_of_a_chunk_lie_where_the_facts_say() -> None:
    one = model("a")
    written = page(one)
    facts = json.loads(written.partition('id="explorer-facts">')[2].partition("</script>")[0])
    chunk = base64.b64decode(written.partition('id="explorer-maps-0-1">')[2].partition("<")[0])
    lengths = facts["models"][0]["maps"][1]
    packed = one.pictures[7].layers[2]
    start = lengths[0][1] + lengths[0][3]
    assert packed.attention is not None
    assert chunk[start:] == packed.cosines.data + packed.attention.data
    assert lengths[1] == [
        packed.cosines.levels,
        len(packed.cosines.data),
        packed.attention.levels,
        len(packed.attention.data),
    ]


@pytest.mark.parametrize(("error", "stated"), [(0.004999, "0.005"), (0.005, "0.005"), (0.0051, "0.006"), (0.0, "0")])
def test_the_stated_error_holds(error: float, stated: str) -> None:
    one = model("a")
    layers = {
        layer: replace(packed, cosines=replace(packed.cosines, error=error))
        for layer, packed in one.pictures[3].layers.items()
    }
    altered = replace(one, pictures={3: replace(one.pictures[3], layers=layers)})
    assert f"no cosine is off by more than {stated}" in page(altered)
    assert float(stated) >= error
