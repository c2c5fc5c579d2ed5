"""Heads in a file: what a stranger's file may hold is refused in one line; what was trained is scored as it was trained."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffusionlens import probe
from diffusionlens.analysis.probes.heads.kinds import KINDS
from diffusionlens.analysis.probes.heads.saved import HeadFacts, read_heads
from diffusionlens.analysis.run import Measurement
from diffusionlens.errors import InputError
from tests.cli.test_hostile_requests import refused

MODEL = "t=shipped:mini_untrained_seed0"
TEST, TRAIN = "test=scenes:?n=4&seed=1&size=64", "train=scenes:?n=6&size=64"
KEY = "diffusionlens_probe"


@dataclass(frozen=True)
class Made:
    path: Path
    measurement: Measurement

    def facts(self) -> dict[str, Any]:
        with safe_open(self.path, "pt") as file:
            return json.loads(file.metadata()[KEY])

    def tensors(self) -> dict[str, Tensor]:
        with safe_open(self.path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def heads_alone(_: Measurement, place: Path, keep: Callable[[Path], None]) -> Path:
    """In place of a whole result: figures take longer than all else."""
    place.mkdir()
    keep(place)
    return place


def make(task: str, out: Path, options: list[str], tokens: str) -> Made:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffusionlens.api.probing.write_bundle", heads_alone)
        done = probe(
            task, MODEL, TEST, TRAIN, out, layers="0,6", seeds=2, tokens=tokens, save_heads=True,
            options=["iterations=6", "points=16", *options],
        )  # fmt: skip
    assert done is not None
    return Made(out / "heads" / "t.safetensors", done.measurement)


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make("segmentation", tmp_path_factory.mktemp("heads") / "seg", [], "all")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make("depth", tmp_path_factory.mktemp("heads") / "deep", ["max_depth=20", "bins=16"], "patch,cls+patch")


def written(path: Path, text: str, tensors: dict[str, Tensor]) -> Path:
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {KEY: text})
    return path


def line_of(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_heads(path, torch.device("cpu"))
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(f"--heads {path}")
    return line


MISSING = object()
RIGHT = [("depth_range", None), ("model", "x"), ("trained_on", "x")]  # of segmentation; any text is a name
UNIT = {"layer": 0, "seed": 0, "kinds": ["patch"]}
WRONG: list[tuple[str, Any]] = [
    *((name, MISSING) for name in HeadFacts.model_fields if name != "format"),
    *((name, wrong) for name in HeadFacts.model_fields for wrong in (None, [], {}, "x", 1.5, [[]]) if (name, wrong) not in RIGHT),
    ("format", 1), ("format", 3), ("task", "classification"), ("extra", 1),
    ("classes", [1, 2]), ("classes", ["a"]), ("classes", "abcdef"),
    *((size, wrong) for size in ("width", "outputs") for wrong in (-1, 0, True, "192", 10**12, 10**400)),
    ("batch_norm", False), ("batch_norm", 1), ("batch_norm", "true"),
    ("depth_range", [0.001, 10.0]), ("digest", "x" * 64), ("digest", "0" * 63),
    ("units", [UNIT | {"kinds": ["cls", "patch"]}]), ("units", [UNIT | {"kinds": ["patch", "patch"]}]),
    ("units", [UNIT | {"kinds": ["patches"]}]), ("units", [UNIT | {"kinds": []}]), ("units", [UNIT | {"kinds": "patch"}]),
    ("units", [UNIT | {"layer": -1}]), ("units", [UNIT | {"layer": "0"}]), ("units", [UNIT | {"layer": True}]),
    ("units", [UNIT | {"seed": 10**9}]), ("units", [UNIT, UNIT]), ("units", [UNIT, UNIT | {"seed": 1, "kinds": ["cls"]}]),
    ("units", [{"layer": 0}]), ("units", [0]),
    ("learning_rates", {"0": {"patch": 0.1}}), ("learning_rates", {"0": [0.1], "6": [0.1]}), ("learning_rates", {"x": {}}),
]  # fmt: skip
RATES: list[Callable[[dict[str, Any]], Any]] = [
    lambda rates: rates["0"].update(patch=-1e-3),
    lambda rates: rates["0"].update(patch="1e-3"),
    lambda rates: rates["0"].update(patch=float("nan")),
    lambda rates: rates["0"].pop("patch"),
    lambda rates: rates["0"].update(patches=1e-3),
    lambda rates: rates.update({"00": rates["0"]}),
    lambda rates: rates.update({"٠": rates.pop("0")}),
    lambda rates: rates.update({"3": rates["0"]}),
]
TEXTS = [
    "", "null", "[]", "5", '"x"', "{}", "{", "\0", "nan", "[" * 100_000, '{"task":' * 50_000, '{"task": "segmentation"}',
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{n}-{str(w)[:20]}-{i}" for i, (n, w) in enumerate(WRONG)])
def test_facts_that_no_probe_writes(name: str, wrong: Any, segmented: Made, tmp_path: Path) -> None:
    facts = segmented.facts()
    if wrong is MISSING:
        del facts[name]
    else:
        facts[name] = wrong
    told = line_of(written(tmp_path / "h.safetensors", json.dumps(facts), segmented.tensors()))
    assert "holds no heads that are understood" in told


@pytest.mark.parametrize("harm", RATES, ids=range(len(RATES)))
def test_learning_rates_that_no_probe_writes(
    harm: Callable[[dict[str, Any]], Any], segmented: Made, tmp_path: Path
) -> None:
    facts = segmented.facts()
    harm(facts["learning_rates"])
    line_of(written(tmp_path / "h.safetensors", json.dumps(facts), segmented.tensors()))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_that_is_no_facts(text: str, segmented: Made, tmp_path: Path) -> None:
    line_of(written(tmp_path / "h.safetensors", text, segmented.tensors()))


DEEP: list[tuple[str, Any]] = [
    ("depth_range", None), ("depth_range", [10.0, 0.001]), ("depth_range", [5.0, 5.0]), ("depth_range", [0.0, 10.0]),
    ("depth_range", [-1.0, 10.0]),
    ("depth_range", [0.001, 1e9]), ("depth_range", [0.001]), ("depth_range", [0.001, float("nan")]),
    ("depth_range", [0.001, float("inf")]), ("depth_range", ["0.001", "10"]),
    ("batch_norm", True), ("outputs", 1), ("task", "segmentation"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), DEEP, ids=range(len(DEEP)))
def test_facts_of_depth_that_no_probe_writes(name: str, wrong: Any, deep: Made, tmp_path: Path) -> None:
    line_of(written(tmp_path / "h.safetensors", json.dumps(deep.facts() | {name: wrong}), deep.tensors()))


@pytest.mark.parametrize("kinds", [list(reversed(KINDS)), [*KINDS[:4], "patch"]], ids=["order", "twice"])
def test_token_kinds_in_another_order_would_get_each_others_heads(
    kinds: list[str], segmented: Made, tmp_path: Path
) -> None:
    facts = segmented.facts()
    for unit in facts["units"]:
        unit["kinds"] = kinds
    facts["learning_rates"] = {layer: dict.fromkeys(kinds, 1e-3) for layer in facts["learning_rates"]}
    told = line_of(written(tmp_path / "h.safetensors", json.dumps(facts), segmented.tensors()))
    assert "token kinds of a layer are out of order" in told


def test_depth_of_a_single_bin(deep: Made, tmp_path: Path) -> None:
    cut = {
        name: value[:, :, :1] if name.endswith(("bias", "weight")) else value for name, value in deep.tensors().items()
    }
    told = line_of(written(tmp_path / "h.safetensors", json.dumps(deep.facts() | {"outputs": 1}), cut))
    assert "too few bins" in told


def set_to(name: str, number: float) -> Callable[[dict[str, Tensor]], Any]:
    def harm(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[-1] = number

    return harm


TENSORS: list[tuple[str, Callable[[dict[str, Tensor]], Any], str]] = [
    ("NaN", set_to("0/0/bias", float("nan")), "0/0/bias has numbers that no trained head has"),
    ("infinite", set_to("6/1/patch_weight", float("inf")), "6/1/patch_weight has numbers that no trained head has"),
    ("huge", set_to("6/1/side_scale", 1e13), "6/1/side_scale has numbers that no trained head has"),
    ("NaN statistics", set_to("0/1/running_mean/cls", float("nan")), "has numbers that no trained head has"),
    ("negative variance", set_to("0/0/running_var/patch", -1e-3), "0/0/running_var/patch is a variance below 0"),
    ("missing", lambda own: own.pop("0/1/bias"), "0/1/bias is missing, or too much"),
    ("missing statistics", lambda own: own.pop("0/1/running_var/patch"), "is missing, or too much"),
    ("extra", lambda own: own.update(more=torch.zeros(1)), "more is missing, or too much"),
    ("shape", lambda own: own.update({"0/0/bias": torch.zeros(5, 1, 3)}), "0/0/bias is not of the shape"),
    ("transposed", lambda own: own.update({"0/0/bias": own["0/0/bias"].mT}), "0/0/bias is not of the shape"),
    ("double", lambda own: own.update({"0/0/bias": own["0/0/bias"].double()}), "in float32"),
    ("half", lambda own: own.update({"0/0/bias": own["0/0/bias"].half()}), "in float32"),
    ("whole", lambda own: own.update({"0/0/bias": own["0/0/bias"].int()}), "in float32"),
]


@pytest.mark.parametrize(("harm", "told"), [one[1:] for one in TENSORS], ids=[one[0] for one in TENSORS])
def test_tensors_that_no_probe_writes(
    harm: Callable[[dict[str, Tensor]], Any], told: str, segmented: Made, tmp_path: Path
) -> None:
    tensors = segmented.tensors()
    harm(tensors)
    assert told in line_of(written(tmp_path / "h.safetensors", json.dumps(segmented.facts()), tensors))


def test_no_memory_is_taken_for_what_is_only_claimed(segmented: Made, tmp_path: Path) -> None:
    facts = segmented.facts()
    facts |= {"width": 1_000_000}
    assert "is not of the shape" in line_of(written(tmp_path / "h.safetensors", json.dumps(facts), segmented.tensors()))


def test_files_that_hold_no_heads(segmented: Made, tmp_path: Path) -> None:
    place = tmp_path / "h.safetensors"
    assert "does not exist" in line_of(place)
    assert "is no file" in line_of(tmp_path)
    save_file({"a": torch.zeros(1)}, place)
    assert "holds no heads of a probe" in line_of(place)
    whole = segmented.path.read_bytes()
    for content in (b"", b"not a file of tensors", whole[:-1], whole[:100], b"\xff" * 16, b"\0" * 100):
        place.write_bytes(content)
        assert "can't be read" in line_of(place)


@pytest.mark.parametrize("harm", ["facts", "tensors", "text"])
def test_the_command_ends_with_status_2(
    harm: str, segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts, tensors = segmented.facts(), segmented.tensors()
    if harm == "facts":
        del facts["task"]
    if harm == "tensors":
        tensors["0/0/bias"][:] = float("nan")
    path = written(tmp_path / "h.safetensors", "[" * 5000 if harm == "text" else json.dumps(facts), tensors)
    line = ["probe", "segmentation", MODEL, "--data", TEST, "--heads", str(path), "--out", str(tmp_path / "out")]
    refused(line, monkeypatch, capsys)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["h.safetensors"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"train": TRAIN}, "--train would not be used"),
        ({"seeds": 3}, "--seeds would not be used"),
        ({"save_heads": True}, "--save-heads would not be used"),
        ({"options": ["iterations=5"]}, "--set iterations would not be used"),
        ({"options": ["rates=1e-3"]}, "--set rates would not be used"),
        ({"options": ["held_out=0.2"]}, "--set held_out would not be used"),
        ({"options": ["points=9"]}, "--set points would not be used"),
        ({"models": [MODEL, f"u{MODEL[1:]}"]}, "goes with one model"),
        ({"models": "t=shipped:mini_untrained_seed1"}, "has other weights or another size"),
        ({"size": "32"}, "has other weights or another size"),
        ({"task": "depth"}, "is of segmentation, not of depth"),
        ({"task": "classification"}, "with segmentation or depth"),
        ({"data": f"{TEST}&classes=4"}, "which are not the"),
        ({"layers": "3"}, "has no head of the layers 3; it has those of 0, 6"),
    ],
)
def test_what_does_not_go_with_heads_is_refused_before_a_picture(
    change: dict[str, Any], told: str, segmented: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "diffusionlens.analysis.probes.cached.probe.open_store", lambda *_: pytest.fail("a forward pass")
    )
    asked = {"task": "segmentation", "models": MODEL, "data": TEST, "heads": segmented.path} | change
    with pytest.raises(InputError, match=told) as error:
        probe(**asked)
    assert "\n" not in str(error.value)


def test_tokens_choose_among_the_saved_heads(segmented: Made, deep: Made) -> None:
    done = probe("segmentation", MODEL, TEST, heads=segmented.path, tokens="patch,mean+patch", layers="6")
    assert done is not None
    own, trained = done.measurement.results, segmented.measurement.results
    assert list(own[own["metric"] == "miou"]["token"]) == ["patch", "mean+patch"]
    both = own.merge(trained, on=["analysis", "metric", "layer", "token"], suffixes=("", "_trained"))
    assert len(both) == len(own) > 0
    assert both["value"].to_numpy() == pytest.approx(both["value_trained"].to_numpy())
    some = probe("depth", MODEL, TEST, heads=deep.path, tokens="patch,cls", layers="6")
    assert some is not None
    assert set(some.measurement.results["token"]) == {"patch"}
    assert [(one["what"], one["reason"]) for one in some.measurement.manifest["left_out"]] == [
        ("cls", "--heads has none of it")
    ]
    with pytest.raises(InputError, match="has no head of --tokens cls; it has patch, cls\\+patch"):
        probe("depth", MODEL, TEST, heads=deep.path, tokens="cls")


def test_depth_is_scored_with_the_bins_and_the_range_of_training(deep: Made) -> None:
    for options in ([], ["max_depth=20"], ["bins=16", "max_depth=auto"]):
        done = probe("depth", MODEL, TEST, heads=deep.path, layers="0,6", options=options)
        assert done is not None
        assert done.measurement.results["value"].to_numpy() == pytest.approx(
            deep.measurement.results["value"].to_numpy()
        )
        recipe = done.measurement.manifest["analyses"]["depth"]
        assert (recipe["min_depth"], recipe["max_depth"], recipe["bins"]) == (0.001, 20, 16)
    for setting in ("max_depth=80", "min_depth=1", "bins=256"):
        with pytest.raises(InputError, match=f"and is scored with it; leave out --set {setting}"):
            probe("depth", MODEL, TEST, heads=deep.path, options=[setting])


def test_the_manifest_says_what_was_done(segmented: Made, tmp_path: Path) -> None:
    done = probe("segmentation", MODEL, TEST, None, tmp_path / "out", heads=segmented.path, layers="6")
    assert done is not None
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [(one["role"], one["measured"]) for one in manifest["data"]] == [("test", 4)]
    assert manifest["settings"]["seeds"] == 2
    assert manifest["settings"]["tokens"] == ",".join(KINDS)
    assert manifest["backbone_forwards"] == 4
    assert manifest["analyses"]["segmentation"] == {"preset": "fast"}  # nothing was trained
    probed = manifest["models"][0]["probe"]
    assert probed["heads"] == {"trained_on": TRAIN, "model": "t"}
    assert "rates_chosen" not in probed
    assert probed["learning_rates"] == {"6": segmented.facts()["learning_rates"]["6"]}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "heads trained on" in page
    assert "Training data" not in page
