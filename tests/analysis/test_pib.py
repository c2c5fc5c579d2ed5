"""PiB against planted arg-max patches and an independent implementation of the released rule on real pictures."""

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

from diffusionlens.analysis.pib import Pib, PibOptions
from diffusionlens.analysis.regions import patches_in_boxes
from tests.analysis.planted import PATCH, collate, planted_batch, planted_context, planted_trace

GRID = (4, 5)


def planted(best: list[int], where: list[Tensor], **options: object) -> Pib:
    """PiB of pictures whose patch `best[i]` is the one most similar to CLS, at layers 0 and 1."""
    tokens = torch.randn(len(best), 21, 16, generator=torch.Generator().manual_seed(0))
    for picture, patch in enumerate(best):
        tokens[picture, 1 + patch] = tokens[picture, 0] * 3
    trace = planted_trace({0: tokens, 1: tokens}, GRID)
    diagnostic = Pib(planted_context(trace, len(best), ["boxes"]), PibOptions(**options))  # type: ignore[arg-type]
    diagnostic.update(trace, planted_batch(len(best), GRID, where))
    return diagnostic


def number(diagnostic: Pib, metric: str, layer: int = 1) -> float:
    return next(row.value for row in diagnostic.table() if row.metric == metric and row.layer == layer)


def box(row0: float, column0: float, row1: float, column1: float) -> Tensor:
    """A box given in patches."""
    return torch.tensor([[column0 * PATCH[1], row0 * PATCH[0], column1 * PATCH[1], row1 * PATCH[0]]])


def test_hits_misses_and_chance() -> None:
    inside, outside = 1 * 5 + 2, 3 * 5 + 4
    boxes = [box(1.1, 1.1, 2.9, 3.9)] * 4  # rows 1..2, columns 1..3: six patches
    diagnostic = planted([inside, outside, inside, inside], boxes)
    assert number(diagnostic, "pib") == 75
    assert number(diagnostic, "pib_chance") == pytest.approx(100 * 6 / 20)
    assert number(diagnostic, "pib_lift") == pytest.approx(75 - 30)
    assert number(diagnostic, "pib_center") == 100  # patch (2, 2)


def test_rules_for_a_box_that_ends_on_a_patch_border() -> None:
    """Released rule: floor(max / p) is inside, so that a box over patch 0 alone also touches patch 1."""
    exact = box(0, 0, 1, 1)
    assert patches_in_boxes(exact, GRID, PATCH, "touch").sum() == 4
    assert patches_in_boxes(exact, GRID, PATCH, "center").sum() == 1
    assert patches_in_boxes(exact, GRID, PATCH, "half").sum() == 1
    third = box(0, 0, 1, 1.4)
    assert patches_in_boxes(third, GRID, PATCH, "center").sum() == 1
    assert patches_in_boxes(box(0, 0, 1, 1.5), GRID, PATCH, "half").sum() == 2
    assert patches_in_boxes(box(0.5, 0.5, 1, 1), GRID, PATCH, "half").sum() == 0  # a quarter of the patch
    whole = box(0, 0, 4, 5)
    assert patches_in_boxes(whole, GRID, PATCH, "touch").all()


def test_single_object_pictures_only() -> None:
    two = torch.cat([box(0, 0, 1, 1), box(2, 2, 3, 3)])
    diagnostic = planted([0, 0, 0], [box(0, 0, 0.9, 0.9), two, torch.zeros(0, 4)])
    assert [row.n for row in diagnostic.table() if row.metric == "pib"] == [1, 1]
    assert diagnostic.dropped_pictures == {"no object": 1, "several objects": 1}
    any_box = planted([12, 13, 0], [box(0, 0, 0.9, 0.9), two, torch.zeros(0, 4)], boxes="any")
    assert number(any_box, "pib") == 50  # patch 13 = (2, 3) touches the second box


def test_small_boxes_only() -> None:
    diagnostic = planted([0, 0], [box(0, 0, 0.9, 0.9), box(0, 0, 3, 3)], max_box_area=0.25)
    assert [row.n for row in diagnostic.table() if row.metric == "pib"] == [1, 1]
    assert diagnostic.dropped_pictures == {"box too large": 1}


def test_ties_go_to_the_lowest_index() -> None:
    tokens = torch.zeros(1, 21, 4)
    tokens[:, :, 0] = 1  # all cosines are 1
    trace = planted_trace({1: tokens, 0: tokens}, GRID)
    diagnostic = Pib(planted_context(trace, 1, ["boxes"]), PibOptions())
    diagnostic.update(trace, planted_batch(1, GRID, [box(0, 0, 0.9, 0.9)]))
    assert number(diagnostic, "pib") == 100


def test_queries() -> None:
    generator = torch.Generator().manual_seed(0)
    early, late = torch.randn(1, 21, 8, generator=generator), torch.randn(1, 21, 8, generator=generator)
    early[0, 1 + 7] = late[0, 0]  # at layer 0 patch 7 is like the final CLS
    boxes = [box(1.1, 2.1, 1.9, 2.9)]  # patch 7
    trace = planted_trace({0: early, 1: late}, GRID)
    context = planted_context(trace, 1, ["boxes"])
    final = Pib(context, PibOptions(query="cls_final", tokens="raw"))
    final.update(trace, planted_batch(1, GRID, boxes))
    assert number(final, "pib", layer=0) == 100
    without_cls = planted_trace({0: early[:, 1:], 1: late[:, 1:]}, GRID, has_cls=False)
    context = planted_context(without_cls, 1, ["boxes"])
    assert Pib(context, PibOptions()).query == "mean_patch"
    refused = Pib(context, PibOptions(query="cls"))
    assert refused.unusable is not None
    assert "no CLS" in refused.unusable.reason


def test_interval_is_wilsons() -> None:
    from diffusionlens.analysis.intervals import wilson

    diagnostic = planted([0] * 3 + [19] * 5, [box(0, 0, 0.9, 0.9)] * 8)
    row = next(row for row in diagnostic.table() if row.metric == "pib")
    low, high = wilson(3, 8)
    assert (row.low, row.high) == pytest.approx((100 * low, 100 * high))


# --- the released rule on real pictures -----------------------------------------------------------------------------


def released_hits(scores: np.ndarray, annotation: Path, patch: int, size: int) -> bool | None:
    """The rule as literature describes it (resize, centre crop, inclusive patch rounding), from the XML itself."""
    root = ElementTree.parse(annotation).getroot()
    objects = root.findall("object")
    if len(objects) != 1:
        return None
    width, height = (int(root.find("size").find(key).text) for key in ("width", "height"))
    corner = [float(objects[0].find("bndbox").find(key).text) for key in ("xmin", "ymin", "xmax", "ymax")]
    x0, y0, x1, y1 = corner[0] - 1, corner[1] - 1, corner[2], corner[3]
    short = int(size * 256 / 224)
    if width < height:
        new_width, new_height = short, int(short * height / width)
    else:
        new_width, new_height = int(short * width / height), short
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    x0, x1 = (min(max(x * new_width / width - left, 0), size) for x in (x0, x1))
    y0, y1 = (min(max(y * new_height / height - top, 0), size) for y in (y0, y1))
    if x1 <= x0 or y1 <= y0:
        return None
    grid = size // patch
    columns = range(math.floor(x0 / patch), min(math.floor(x1 / patch), grid - 1) + 1)
    rows = range(math.floor(y0 / patch), min(math.floor(y1 / patch), grid - 1) + 1)
    best = int(np.argmax(scores))
    return best // grid in rows and best % grid in columns


@pytest.mark.slow
def test_hit_for_hit_on_voc(shared_data: Path) -> None:
    from diffusionlens.analysis.measure import chosen_pictures
    from diffusionlens.capture import capture
    from diffusionlens.data import FitTransform, open_data
    from diffusionlens.models import load_model

    backbone = load_model(str(shared_data / "weights" / "vit_small_patch14_saliency_fp16.safetensors"))
    backbone.set_size((224, 224))
    source = open_data(f"voc:{shared_data / 'VOCdevkit'}?year=2012&split=val")
    transform = FitTransform((224, 224), backbone.preprocessing.mean, backbone.preprocessing.std)
    indices = chosen_pictures(len(source), 48)
    layers = (0, 6, 12)
    expected: dict[int, list[bool]] = {layer: [] for layer in layers}
    from diffusionlens.analysis.diagnostic import Context

    diagnostic = Pib(Context(backbone, layers, tuple(indices), source.provides, 0), PibOptions())
    for start in range(0, len(indices), 8):
        batch = collate([transform(source.open(index), index) for index in indices[start : start + 8]])
        trace = capture(backbone, batch.images)
        diagnostic.update(trace, batch)
        for layer in layers:
            with torch.inference_mode():
                tokens = backbone.model.norm(trace.raw[layer])
            cosine = torch.cosine_similarity(tokens[:, 1:], tokens[:, :1], dim=-1).numpy()
            for place, sample in enumerate(batch.samples):
                annotation = shared_data / "VOCdevkit/VOC2012/Annotations" / f"{sample.name}.xml"
                hit = released_hits(cosine[place], annotation, 14, 224)
                if hit is not None:
                    expected[layer].append(hit)
    ((columns, values),) = diagnostic.per_image()
    for place, column in enumerate(columns):
        if column.metric == "pib":
            found = values[:, place][~np.isnan(values[:, place])] > 50
            assert len(found) > 15
            assert found.tolist() == expected[column.layer]
