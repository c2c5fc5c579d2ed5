"""Settings that no training can have: one line that says what was wanted, before any picture is opened."""

from pathlib import Path

import pytest

from diffusionlens import probe
from diffusionlens.analysis.probes.cached.budget import training_bytes
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.errors import InputError
from tests.cli.test_hostile_requests import refused

MODEL = "t=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
TEST, TRAIN = "test=scenes:?n=4&seed=1", "train=scenes:?n=6"

EVERY = [
    ("iterations=true", "a whole number from 1"),
    ("iterations=0", "a whole number from 1"),
    ("iterations=1.5", "a whole number from 1"),
    ("iterations=1e99", "a whole number from 1"),
    ("iterations=[]", "a whole number from 1"),
    ("iterations=2000-01-01", "a whole number from 1"),
    ("batch_size=1", "a whole number from 2"),
    ("batch_size=no", "a whole number from 2"),
    ("rates=[]", "1 to 32 different numbers above 0"),
    ("rates=0", "1 to 32 different numbers above 0"),
    ("rates=-1e-3", "1 to 32 different numbers above 0"),
    ("rates=1e30", "1 to 32 different numbers above 0"),
    ("rates=1e-3,1e-3", "1 to 32 different numbers above 0"),
    ("rates=1e-3,true", "1 to 32 different numbers above 0"),
    ("rates=[[1e-3]]", "1 to 32 different numbers above 0"),
    ("rates={a: 1}", "1 to 32 different numbers above 0"),
    ("rates=nan", "is not a plain value"),
    ("rates=inf", "is not a plain value"),
    ("weight_decay=1e12", "a number from 0 to 10"),
    ("weight_decay=-1", "a number from 0 to 10"),
    ("weight_decay=true", "a number from 0 to 10"),
    ("warmup=100000", "at most iterations, which is "),
    ("warmup=-1", "a whole number from 0"),
    ("warmup_start=0", "a number above 0 to 1"),
    ("held_out=0.999", "a number above 0 to 0.5"),
    ("held_out=0", "a number above 0 to 0.5"),
    ("schedule=flat", "'poly' or 'cosine'"),
    ("optimizer=adam", "'adamw' or 'sgd'"),
]
DENSE = [
    ("points=0", "a whole number from 1"),
    ("points=1e9", "a whole number from 1"),
    ("points=1000000000", "a whole number from 1"),
    ("points=false", "a whole number from 1"),
]
DEPTH = [
    ("bins=1", "a whole number from 2 to 4096"),
    ("bins=true", "a whole number from 2 to 4096"),
    ("min_depth=0", "a number above 0"),
    ("min_depth=auto", "a number above 0"),
    ("max_depth=-3", "a number above 0 to 100000, or auto"),
    ("max_depth=true", "a number above 0 to 100000, or auto"),
    ("crop_name=egen", "'auto', 'eigen', 'garg' or 'none'"),
    ("sigloss_warmup=-1", "a whole number from 0"),
    ("sigloss_warmup=400", "at most iterations, which is 300"),
    ("clip=0", "a number above 0 to 1e+06, or null"),
    ("clip=-1", "a number above 0 to 1e+06, or null"),
    ("clip=true", "a number above 0 to 1e+06, or null"),
]
STREAMED = [
    ("crop=64x", "a size as 512 or 416x544, sides from 8 to 8192"),
    ("crop=x64", "a size as 512 or 416x544, sides from 8 to 8192"),
    ("crop=64x64x64", "a size as 512 or 416x544, sides from 8 to 8192"),
    ("crop=7", "a size as 512 or 416x544, sides from 8 to 8192"),
    ("crop=true", "a size as 512 or 416x544, sides from 8 to 8192"),
    ("flip=2", "a number from 0 to 1"),
    ("flip=true", "a number from 0 to 1"),
    ("whole_map=1", "true or false"),
]
STREAMED_SEGMENTATION = [
    ("crop=auto", "a size as 512 or 416x544"),
    ("ratio=2,0.5", "two numbers above 0 to 8, the smaller one first"),
    ("ratio=1", "two numbers above 0 to 8, the smaller one first"),
    ("ratio=0,1", "two numbers above 0 to 8, the smaller one first"),
    ("ratio=1,2,3", "two numbers above 0 to 8, the smaller one first"),
    ("most_of_one_class=0", "a number above 0 to 1"),
    ("photometric=yes please", "true or false"),
    ("window=4", "a size as 512 or 416x544"),
    ("stride=0", "sides from 1 to 8192"),
    ("stride=600", "wanted one up to window"),
    ("stride=1", "wanted a stride of 1/16 of the window at least"),
]
STREAMED_DEPTH = [
    ("brightness=2,1", "two numbers above 0 to 10, the smaller one first, or auto"),
    ("brightness=0,1", "two numbers above 0 to 10, the smaller one first, or auto"),
    ("brightness=true,true", "two numbers above 0 to 10, the smaller one first, or auto"),
    ("rotate=181", "a number from 0 to 180"),
    ("border=kp", "'auto', 'nyu', 'kb' or 'none'"),
    ("view=64x", "a size as 512 or 416x544, sides from 8 to 8192, or auto"),
    ("mirrored=0", "true or false"),
]
CLASSIFICATION = [
    ("k=5,5", "1 to 32 different whole numbers from 1"),
    ("k=[]", "1 to 32 different whole numbers from 1"),
    ("k=0", "1 to 32 different whole numbers from 1"),
    ("k=1.5", "1 to 32 different whole numbers from 1"),
    ("k=true", "1 to 32 different whole numbers from 1"),
    ("methods=[]", "one or several of knn, linear, logreg, each once"),
    ("methods=knn,knn", "one or several of knn, linear, logreg, each once"),
    ("methods=svm", "one or several of knn, linear, logreg, each once"),
    ("temperature=1e-50", "a number from 0.001 to 1000"),
    ("temperature=0", "a number from 0.001 to 1000"),
    ("logreg_pictures=-1", "a whole number from 0"),
    ("shots=0", "a whole number from 1 to 1000000, or null"),
    ("shots=true", "a whole number from 1 to 1000000, or null"),
]
PROTOCOL = [
    ("blocks=4,4", "1 to 16 different whole numbers from 1"),
    ("blocks=[]", "1 to 16 different whole numbers from 1"),
    ("blocks=0", "1 to 16 different whole numbers from 1"),
    ("pools=cls,cls", "one or several of cls, cls+mean, each once"),
    ("pools=[]", "one or several of cls, cls+mean, each once"),
    ("epochs=0", "a whole number from 1 to 100000, or null"),
    ("augment=1", "true or false"),
]
REFUSED = [
    (task, preset, setting, wanted)
    for task, preset, values in (
        ("segmentation", "fast", EVERY + DENSE),
        ("depth", "fast", EVERY + DENSE + DEPTH),
        ("classification", "fast", EVERY + CLASSIFICATION),
        ("segmentation", "dinov2", EVERY + DENSE + STREAMED + STREAMED_SEGMENTATION),
        ("depth", "dinov2", EVERY + DENSE + [one for one in DEPTH if "=400" not in one[0]] + STREAMED + STREAMED_DEPTH),
        ("classification", "dinov2", EVERY + PROTOCOL),
        ("classification", "dino", [one for one in EVERY if one[0] != "warmup=100000"] + PROTOCOL),
    )
    for setting, wanted in values
]


@pytest.mark.parametrize(("task", "preset", "setting", "wanted"), REFUSED)
def test_values_out_of_range(task: str, preset: str, setting: str, wanted: str) -> None:
    with pytest.raises(InputError) as error:
        recipe_for(task, preset, [setting])
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(f"--set {setting};") or "is not a plain value" in line
    assert wanted in line
    assert "pydantic" not in line.lower()
    assert "validat" not in line.lower()


@pytest.mark.parametrize(
    ("task", "preset", "settings", "told"),
    [
        ("depth", "fast", ["min_depth=20", "max_depth=3"], "min_depth below max_depth, and they are 20 and 3"),
        ("depth", "fast", ["min_depth=3", "max_depth=3"], "min_depth below max_depth, and they are 3 and 3"),
        ("segmentation", "dinov2", ["window=64", "stride=80"], "would leave pixels out"),
        ("segmentation", "fast", ["iterations=10", "warmup=11"], "at most iterations, which is 10"),
        ("segmentation", "fast", ["iterations=5", "iterations=6"], "--set iterations is given twice"),
        ("segmentation", "fast", ["iterations"], "wanted KEY=VALUE"),
        ("segmentation", "fast", ["rates=" + "[" * 3000], "is not a plain value"),
        ("segmentation", "fast", ["rates=!!python/object/apply:os.system [true]"], "is not a plain value"),
    ],
)
def test_values_that_do_not_go_together(task: str, preset: str, settings: list[str], told: str) -> None:
    with pytest.raises(InputError) as error:
        recipe_for(task, preset, settings)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "preset", "setting", "value"),
    [
        ("segmentation", "fast", "iterations=1", 1),
        ("segmentation", "fast", "rates=1e-3, 3e-3", (1e-3, 3e-3)),
        ("segmentation", "fast", "rates=1e6", (1e6,)),
        ("segmentation", "dinov2", "crop=416x544", (416, 544)),
        ("segmentation", "dinov2", "crop=96", (96, 96)),
        ("segmentation", "dinov2", "stride=32", (32, 32)),
        ("segmentation", "dinov2", "ratio=1,1", (1, 1)),
        ("segmentation", "dinov2", "photometric=false", False),
        ("depth", "fast", "clip=null", None),
        ("depth", "fast", "max_depth=auto", "auto"),
        ("depth", "dinov2", "brightness=auto", "auto"),
        ("depth", "dinov2", "view=auto", "auto"),
        ("classification", "fast", "k=1", (1,)),
        ("classification", "fast", "methods=logreg", ("logreg",)),
        ("classification", "fast", "shots=null", None),
        ("classification", "dino", "pools=cls,cls+mean", ("cls", "cls+mean")),
        ("classification", "dino", "warmup=400", 400),  # epochs say how many steps there are
    ],
)
def test_values_at_the_edge_of_their_range(task: str, preset: str, setting: str, value: object) -> None:
    assert getattr(recipe_for(task, preset, [setting]), setting.partition("=")[0]) == value


@pytest.mark.parametrize(
    "arguments",
    [
        ["segmentation", "--set", "iterations=true"],
        ["segmentation", "--set", "rates=[]"],
        ["depth", "--set", "clip=-1"],
        ["depth", "--set", "min_depth=20", "--set", "max_depth=3"],
        ["depth", "--set", "min_depth=20"],  # above the 10 m that auto comes to
        ["depth", "--preset", "dinov2", "--set", "brightness=2,1"],
        ["segmentation", "--preset", "dinov2", "--set", "crop=64x"],
        ["classification", "--set", "k=5,5"],
        ["classification", "--set", "methods=[]"],
        ["segmentation", "--seeds", "101"],
        ["depth", "--set", "bins=4096", "--set", "points=1000000"],
        ["segmentation", "--preset", "dinov2", "--set", "crop=8192", "--set", "batch_size=65536"],
        ["segmentation", "--cache", "~nobody-of-this-name/x"],
        ["segmentation", "--cache", "x" * 5000],
    ],
)
def test_the_command_ends_with_one_line_and_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["probe", arguments[0], MODEL, "--data", TEST, "--train", TRAIN, "--out", "out", *arguments[1:]]
    refused(line, monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_asked_for_before_any_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusionlens.analysis.probes.cached.budget.free_memory", lambda _: 10**7)
    monkeypatch.setattr(
        "diffusionlens.analysis.probes.cached.probe.open_store", lambda *_: pytest.fail("a forward pass")
    )
    told = r"points=100000, batch_size=16, iterations=300 and 3 rates takes [\d.]+ GB of memory at least, where 0.0 are free"
    with pytest.raises(InputError, match=told):
        probe("segmentation", MODEL, TEST, TRAIN, options=["points=100000"])


def test_the_estimate_of_memory() -> None:
    """Outputs of all heads at all points, their softmax and both gradients; tokens at the points and their mixture; heads."""
    recipe = recipe_for("segmentation", "fast", ["points=1000", "rates=1e-3,1e-2"])
    outputs = 16 * 1000 * 5 * 2 * 21 * 4
    needed = training_bytes(recipe, kinds=5, outputs=21, width=192, layers=13, pictures=100, crop=None)
    tokens = 16 * 1000 * 192 * 4
    assert needed == pytest.approx(4 * outputs + 2 * tokens, rel=0.02)
    few = training_bytes(recipe, kinds=5, outputs=21, width=192, layers=13, pictures=2, crop=None)
    assert few < needed / 7  # no batch is larger than the data set
