"""Recipes, plans, MODEL, DATA and settings that chance has spoilt: understood, or refused in one printable line."""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.probes.settings.recipe import TASKS, Recipe
from diffusionlens.analysis.registry import DIAGNOSTICS, parse_options
from diffusionlens.data.open_data import READERS, open_data
from diffusionlens.errors import InputError
from diffusionlens.models.load import load_model
from diffusionlens.plans.plan_files import read_plan
from diffusionlens.spec import parse_spec
from diffusionlens.training.recipe_files import RECIPES, known_keys, read_recipe, write_recipe
from tests.plans.tiny import PLAN

CASES = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD_NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    2**31,
    2**63,
    10**30,
    0.0,
    -0.0,
    0.5,
    1.5,
    -2.5,
    1e-300,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
]
ODD_WORDS = [
    "",
    " ",
    "~",
    "null",
    "true",
    "no",
    "off",
    "²",
    "1e3",
    "0x10",
    "1_000",
    "12:30:00",
    "2020-13-45",
    "=",
    "[",
    "{",
    "!!python/name:os.system",
    "*a",
    "&a x",
    "a\x1b[31mb",
    "a\nb",
    "../../etc/passwd",
    "x" * 300,
    "all",
    "none",
    "softmax",
    "<script>alert(1)</script>",
    "\ud800",
    "\0",
]
LEAVES = st.one_of(
    st.sampled_from([None, True, False, *ODD_NUMBERS, *ODD_WORDS]), st.integers(), st.floats(), st.text(max_size=20)
)
ODD = st.recursive(
    LEAVES, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(max_size=8), one, max_size=3), max_leaves=8
)


def understood(read: Callable[[], Any]) -> Any:
    """What `read` gives; None where it refuses, and then in one printable line of a length that can be read."""
    try:
        return read()
    except InputError as error:
        line = str(error)
        assert line.isprintable(), line
        assert 10 < len(line) < 2100, line
        return None


def places(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document."""
    held = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in held:
        yield (*above, key)
        yield from places(value, (*above, key))


def spoilt(draw: st.DrawFn, content: Any) -> Any:
    """A document with one to three places changed, renamed, doubled or taken out."""
    content = deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(places(content))))
        room = content
        for key in way:
            room = room[key]
        match draw(st.sampled_from(["value", "value", "value", "out", "name", "list"])):
            case "value":
                room[last] = draw(ODD)
            case "out":
                del room[last]
            case "list":
                room[last] = [room[last], room[last]]
            case "name" if isinstance(room, dict):
                room[draw(ODD.filter(lambda value: not isinstance(value, dict | list)))] = room.pop(last)
        if not content:
            break
    return content


spoil = st.composite(spoilt)


def write(path: Path, content: Any) -> None:
    """As YAML, where it can be said in YAML and in UTF-8."""
    path.write_bytes(yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"))


def finite(content: Any) -> bool:
    if isinstance(content, dict | list | tuple):
        return all(map(finite, content.values() if isinstance(content, dict) else content))
    return not isinstance(content, float) or math.isfinite(content)


WHOLE_RECIPE = yaml.safe_load(write_recipe(read_recipe("tiny_scenes_entmax15")))


@pytest.mark.slow
@CASES
@given(data=st.data())
def test_recipe_files(data: st.DataObject, tmp_path: Path) -> None:
    write(tmp_path / "recipe.yaml", data.draw(spoil(WHOLE_RECIPE)))
    recipe = understood(lambda: read_recipe(tmp_path / "recipe.yaml"))
    if recipe is not None:
        assert finite(recipe.model_dump())
        (tmp_path / "again.yaml").write_text(write_recipe(recipe), encoding="utf-8")
        assert read_recipe(tmp_path / "again.yaml") == recipe


@CASES
@given(key=st.sampled_from(list(known_keys())), value=ODD, recipe=st.sampled_from(sorted(RECIPES.shipped())))
def test_recipe_settings(key: str, value: Any, recipe: str) -> None:
    found = understood(lambda: read_recipe(recipe, settings=[f"{key}={value}"]))
    if found is not None:
        assert finite(found.model_dump())


@pytest.mark.slow
@CASES
@given(data=st.data())
def test_plan_files(data: st.DataObject, tmp_path: Path) -> None:
    write(tmp_path / "plan.yaml", data.draw(spoil(yaml.safe_load(PLAN))))
    plan = understood(lambda: read_plan(tmp_path / "plan.yaml"))
    if plan is not None:
        assert finite(plan.model_dump())
        assert plan.sections


@CASES
@given(
    key=st.sampled_from(
        [
            "images",
            "pib.images",
            "heads.options.rates",
            "heads.seeds",
            "pib.options.pib.hit",
            "pib",
            "title",
            "sections",
            "a.b.c",
            "",
        ]
    ),
    value=ODD,
)
def test_plan_settings(key: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "plan_settings.yaml"
    path.write_text(PLAN)
    understood(lambda: read_plan(path, [f"{key}={value}"]))


OPTIONS = [f"{name}.{key}" for name, kind in DIAGNOSTICS.items() for key in kind.options_type.model_fields]


@CASES
@given(key=st.sampled_from(OPTIONS), value=ODD)
def test_settings_of_analyses(key: str, value: Any) -> None:
    found = understood(lambda: parse_options([f"{key}={value}"]))
    if found is not None:
        assert all(finite(options.model_dump()) for options in found.values())


@CASES
@given(task=st.sampled_from(TASKS), key=st.sampled_from(list(Recipe.model_fields)), value=ODD)
def test_settings_of_probes(task: str, key: str, value: Any) -> None:
    found = understood(lambda: recipe_for(task, "standard", [f"{key}={value}"]))
    if found is not None:
        assert finite(found.model_dump())


KEYS = [
    "pretrained",
    "img_size",
    "attention",
    "positions",
    "heads",
    "branch",
    "timm",
    "normalize",
    "mean",
    "std",
    "year",
    "split",
    "task",
    "boxes",
    "list",
    "n",
    "size",
    "seed",
    "context",
    "count",
    "depth",
    "images",
    "N",
    "",
    "%00",
    "a b",
]
VALUES = [*map(str, ODD_NUMBERS), *ODD_WORDS, "0.5,0.5,0.5", "0,0,0", "1,2", "false", "val", "%F0%9F", "+", "&", "?"]
QUERY = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=3).map(
    lambda pairs: "&".join(f"{key}={value}" for key, value in pairs)
)
TEXT = st.text(max_size=30) | st.builds(
    "{}{}:{}?{}".format,
    st.sampled_from(["", "a=", "=", "a b="]),
    st.text("abcdefgh-", max_size=6),
    st.text(max_size=9),
    QUERY,
)


@CASES
@given(text=TEXT)
def test_any_text(text: str) -> None:
    """No kind of model or data has such a name."""
    understood(lambda: parse_spec(text))
    assert understood(lambda: open_data(text)) is None
    assert understood(lambda: load_model(text)) is None


@CASES
@given(kind=st.sampled_from(sorted(READERS)), query=QUERY)
def test_data(kind: str, query: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "generated_data"
    if not root.exists():
        root.mkdir()
        Image.new("RGB", (20, 30), "red").save(root / "a.png")
        (root / "ImageSets").mkdir()
    source = understood(lambda: open_data(f"{kind}:{'' if kind == 'scenes' else root}?{query}"))
    if source is not None:
        assert kind in ("folder", "scenes", "imagenet")
        assert len(source) >= 1
        assert source.open(0).image.mode == "RGB"


@CASES
@given(
    model=st.sampled_from(
        [
            "shipped:tiny",
            "nowhere.pth",
            "{}/a.pth",
            "{}/a.safetensors",
            "{}",
            "timm:resnet18",
            "timm:vit_tiny",
            "{}@epoch=1",
        ]
    ),
    query=QUERY,
)
def test_models(model: str, query: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "generated_models"
    if not root.exists():
        root.mkdir()
        (root / "a.pth").write_bytes(b"\0\1" * 40)
        (root / "a.safetensors").write_bytes(b"\xff" * 80)
    assert understood(lambda: load_model(f"{model.format(root)}?{query}")) is None


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse_options(["similarity.dse_weight=inf"]),  # YAML has it as a word, of which pydantic makes a number
        lambda: open_data(f"kitti:.?list={'x' * 300}"),
        lambda: open_data(f"imagenet:.?boxes={'x' * 300}"),
    ],
)
def test_found_by_chance(read: Callable[[], Any]) -> None:
    assert understood(read) is None
