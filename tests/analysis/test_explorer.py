"""The explorer's maps against the tokens and weights of a pass of its own; what can't be had, and what is too much."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionlens import load_model, measure, open_data
from diffusionlens.analysis.run import Measurement
from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.errors import InputError
from diffusionlens.explorer.attention import unpack_attention
from diffusionlens.explorer.cosines import unpack_cosines
from diffusionlens.explorer.packed import ExploredModel
from diffusionlens.models import Backbone

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
REGISTERS = "b=timm:vit_medium_patch16_reg4_gap_256?pretrained=false&img_size=64"
DATA = "scenes:?n=8&size=64"


def measured(models: str | Backbone | list[str], data: str = DATA, **options: object) -> Measurement:
    outcome = measure(models, data, **({"analyses": "norms", "explore": 2} | options))  # type: ignore[arg-type]
    assert outcome is not None
    return outcome.measurement


def explored(model: str, data: str = DATA, **options: object) -> ExploredModel:
    found = measured(model, data, **options).material[0].explored
    assert found is not None
    return found


def truth(model: str, data: str, picture: int) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """layer -> normed tokens [CLS?, patches], and layer -> weights [rows, keys] (mean over heads), one picture alone."""
    backbone, source = load_model(model), open_data(data)
    backbone.set_size(backbone.default_size())
    prepared = backbone.preprocessing
    transform = FitTransform(backbone.size, prepared.mean, prepared.std, "crop", prepared.interpolation)
    weights: dict[int, np.ndarray] = {}

    def observe(block: AttentionBlock) -> None:
        weights[block.layer] = block.weights[0].double().mean(0).numpy()

    trace = capture(backbone, transform(source.open(picture), picture).image[None], [observe])
    tokens = {}
    for layer in range(backbone.depth + 1):
        normed = backbone.normed(trace.raw[layer])[0].double()
        keep = [place for place in range(len(normed)) if place >= backbone.prefix or (place == 0 and backbone.has_cls)]
        tokens[layer] = normed[keep].numpy()
    return tokens, weights


def check(model: str, data: str, stored: ExploredModel, *, rounding: float) -> None:
    for place, picture in stored.pictures.items():
        tokens, weights = truth(model, data, place)
        assert sorted(picture.layers) == sorted(tokens)
        for layer, packed in picture.layers.items():
            unit = tokens[layer] / np.linalg.norm(tokens[layer], axis=1, keepdims=True)
            stored_cosines = unpack_cosines(packed.cosines, len(unit))
            assert np.abs(stored_cosines - unit @ unit.T).max() < packed.cosines.error + rounding
            assert packed.cosines.error < 0.02
            if layer == 0:
                assert packed.attention is None
                continue
            assert packed.attention is not None
            cls, patches = int(stored.has_cls), len(unit) - int(stored.has_cls)
            found, whole = unpack_attention(packed.attention, len(unit)), weights[layer]
            rows = np.concatenate([whole[:cls], whole[-patches:]])
            slack = packed.attention.error + rounding
            assert np.abs(found[:, -patches:] - rows[:, -patches:]).max() < slack
            if cls:
                assert np.abs(found[:, 0] - rows[:, 0]).max() < slack
            if stored.registers:
                registers = rows[:, cls : cls + stored.registers].sum(1)
                assert np.abs(found[:, cls] - registers).max() < slack


@pytest.mark.parametrize("model", [MODEL, f"{MODEL}&attention=entmax15", REGISTERS])
def test_maps_are_those_of_the_model(model: str) -> None:
    stored = explored(model, batch_size=3)
    assert list(stored.pictures) == [0, 4]  # evenly spaced
    check(model, DATA, stored, rounding=1e-4)


@pytest.mark.slow
def test_maps_of_a_trained_model(shared_data: Path) -> None:
    weights = shared_data / "weights" / "vit_small_patch14_saliency_fp16.safetensors"
    data = f"voc:{shared_data / 'VOCdevkit' / 'VOC2012'}"
    stored = explored(str(weights), data, images=2)
    assert stored.grid == (16, 16)
    check(str(weights), data, stored, rounding=2e-3)  # other kernels round otherwise, and its cosines are steep in it


def test_what_is_stored_changes_nothing_else() -> None:
    plain = measured(MODEL, explore=0)
    beside = measured(MODEL, analyses="norms,sparsity", options=["explorer.tokens=raw"])
    assert plain.material[0].explored is None
    assert "explorer" not in plain.manifest
    assert beside.manifest["explorer"]["tokens"] == "raw"
    assert list(beside.manifest["analyses"]) == [
        "norms",
        "sparsity",
    ]  # `compare` looks there: it is not another measurement
    entry = beside.manifest["models"][0]["explorer"]
    assert (entry["pictures"], entry["extra_forwards"]) == (2, 0)
    assert 0 < entry["cosine_error"] <= 0.005
    assert set(beside.results["analysis"]) == {"norms", "sparsity"}
    assert plain.results.columns.equals(beside.results.columns)


def test_batches_change_nothing() -> None:
    one, many = (explored(MODEL, batch_size=size) for size in (1, 8))
    for place, picture in one.pictures.items():
        other = many.pictures[place]
        assert picture.image == other.image
        for layer, packed in picture.layers.items():
            first, second = (unpack_cosines(p.cosines, 17) for p in (packed, other.layers[layer]))
            assert np.abs(first - second).max() <= 2 / 200 + 1e-9  # rounding may carry one over an edge


def test_only_the_layers_that_are_asked_for() -> None:
    stored = explored(MODEL, layers="0,6,12")
    assert stored.layers == [0, 6, 12]
    assert [layer for layer, packed in stored.pictures[0].layers.items() if packed.attention] == [6, 12]
    assert not explored(MODEL, options=["explorer.attention=false"]).attention
    assert not explored(MODEL, layers="0").attention


def test_attention_that_cannot_be_seen_leaves_the_cosines() -> None:
    backbone = load_model(MODEL)
    for block in backbone.blocks:
        block.attn.fused_attn = False
    outcome = measured(backbone)
    stored = outcome.material[0].explored
    assert stored is not None
    assert len(stored.pictures) == 2
    assert not stored.attention
    left = {entry["what"]: entry["reason"] for entry in outcome.manifest["left_out"]}
    assert "scaled_dot_product_attention" in left["attention in the explorer"]


def test_too_much_for_a_page_is_refused_with_what_fits() -> None:
    at = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=384"
    with pytest.raises(
        InputError, match=r"--explore 8: 8 pictures at up to 24 x 24 patches, of 1 model, .* use --explore 5, "
    ):
        measured(at, size="384", explore=8)
    with pytest.raises(InputError, match=r"use fewer --layers.*megabytes=\d+"):
        measured(MODEL, explore=2, options=["explorer.megabytes=0.01"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explore": -1}, "--explore -1; wanted a whole number from 0"),
        ({"options": ["explorer.pictures=3"]}, "explorer.pictures is given twice"),
        ({"analyses": "explorer"}, "'explorer' is no analysis"),
    ],
)
def test_wrong_requests(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measured(MODEL, **options)


def test_memory_holds_packed_pictures_only() -> None:
    """Nothing of a picture is left between batches but its bytes."""
    stored = explored(MODEL)
    assert all(isinstance(packed.cosines.data, bytes) for packed in stored.pictures[0].layers.values())
    assert not any(isinstance(value, torch.Tensor) for value in vars(stored).values())
