"""Requests of every command that nobody can fulfil: one printable line, exit status 2, and nothing left behind.

All of them in this process, and none gets as far as a network or a picture."""

import gzip
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from PIL import Image

import diffusionlens
from diffusionlens.cli import main
from diffusionlens.cli.bench import bench
from diffusionlens.cli.main import app
from diffusionlens.errors import InputError

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"
DATA = "scenes:?n=2"


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the command would take SIGTERM from whoever runs the tests
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    assert left.value.code == 2, (arguments, printed)
    assert printed.out == ""
    lines = [line for line in printed.err.splitlines() if not line.startswith("scenes")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    return lines[0]


ODD_DATA = [
    "", " ", "scenes", "scenes:x", "scenes:?n=0", "scenes:?n=-1", "scenes:?n=1e9", "scenes:?n=²", "scenes:?n=", "scenes:?n", "scenes:?n=1&n=2",
    "scenes:?size=8192", "scenes:?size=nan", "scenes:?context=inf", "scenes:?seed=-1", "scenes:?N=3", "voc:", "voc:\0", "voc:?year=2012", "coco:/",
    "folder:", "folder:/dev/null", "folder:~nobody-of-this-name/x", "folder:/proc/self/mem", "imagenet:.", "imagenet:.?boxes=nowhere", "kitti:.", "nyuv2:.",
    "nyuv2:.?list=/etc/passwd", "sunrgbd:.?depth=x", "ade20k:.?split=../../etc", "cityscapes:.", "camvid:.", "tiny-imagenet:.", "s3://bucket/x",
    "file:///etc", "scenes:?n=2#x", "a=b=scenes:?n=2", "=scenes:?n=2", "folder:" + "x" * 5000, "folder:a\x1b[31mb\nc", "voc:.?year=99999999999999999999",
]  # fmt: skip

ODD_MODELS = [
    "", " ", "timm:", "timm:x y", "timm:resnet18?pretrained=false", "timm:vit_tiny_patch16_224?pretrained=maybe", "timm:vit_tiny_patch16_224?img_size=0",
    "timm:vit_tiny_patch16_224?pretrained=false&img_size=17", "timm:vit_tiny_patch16_224?pretrained=false&img_size=9999", "shipped:", "shipped:x",
    "shipped:../../x", "hub:x", "/", "/dev/null", "/dev/zero", "/etc/passwd", "nowhere.pth", "nowhere.safetensors?branch=head", "nowhere@epoch=1",
    "nowhere@epoch=-1", "nowhere@step=x", ".", "~nobody-of-this-name/a.pth", "a\x1b[2Jb.pth", "x" * 5000 + ".pth", "http://host/a.pth", "a.pth\0",
    "timm:vit_tiny_patch16_224?pretrained=false&attention=softest", "timm:vit_tiny_patch16_224?" + "&".join(f"k{n}=1" for n in range(500)),
]  # fmt: skip

ODD_OPTIONS = [
    ["--images", "0"], ["--images", "-1"], ["--images", "1.5"], ["--images", "9" * 5000], ["--batch-size", "0"], ["--batch-size", "-3"],
    ["--workers", "-1"], ["--workers", "100000"], ["--seed", "-1"], ["--seed", "4294967296"], ["--seed", "0x10"], ["--size", "0"], ["--size", "-64"],
    ["--size", "8192"], ["--size", "64x"], ["--size", "64x64x64"], ["--size", "nan"], ["--size", "65"], ["--layers", ""], ["--layers", "99"],
    ["--layers", "-99"], ["--layers", "1-3"], ["--layers", "9" * 5000], ["--layers", "last,all"], ["--analyses", ""], ["--analyses", ","],
    ["--analyses", "pib;norms"], ["--analyses", "PIB"], ["--device", "gpu"], ["--device", "cuda:-1"], ["--fit", "stretch"], ["--set", "pib"],
    ["--set", "pib.hit"], ["--set", "=x"], ["--set", "pib.hit=[[[["], ["--set", "pib.hit=!!python/object/apply:os.system [true]"],
    ["--set", "norms.fixed=.nan"], ["--set", "norms.fixed=-1"], ["--set", "similarity.rank_tokens=0"], ["--set", "x.y=1"], ["--nonsense"], ["-x"],
    ["--set", "pib.hit=" + "[" * 3000],
]  # fmt: skip


@pytest.mark.parametrize("data", ODD_DATA, ids=range(len(ODD_DATA)))
def test_data(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    refused(["measure", MODEL, "--data", data, "--out", "deep/o"], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ODD_MODELS, ids=range(len(ODD_MODELS)))
def test_models(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(["measure", model, "--data", DATA, "--out", "deep/o"], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ODD_OPTIONS, ids=range(len(ODD_OPTIONS)))
def test_options(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(["measure", MODEL, "--data", DATA, "--out", "deep/o", *options], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


ODD_MODEL_OPTIONS = [
    "b.pth?mean=nan", "b.pth?mean=inf&std=half", "b.pth?std=0,0,0", "b.pth?std=0", "b.pth?normalize=none", "b.pth?heads=0", "b.pth?img_size=0", "b.pth?branch=x",
    "b.pth?positions=x", "b.pth?attention=softest", "b.pth?b=1", "timm:vit_tiny_patch16_224?attention=softest", "timm:vit_tiny_patch16_224?img_size=99999",
    "timm:vit_tiny_patch16_224?pretrained=1", "timm:vit_tiny_patch16_224?mean=nan", "timm:vit_tinny", "nowhere.pth", "shipped:mini_softmax_seed0?std=nan",
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "command"),
    [
        *((model, ["measure"]) for model in ODD_MODEL_OPTIONS),
        ("b.pth?mean=nan", ["probe", "segmentation"]),
        ("b.pth?mean=nan", ["report", "quick"]),
    ],
)
def test_options_of_a_model_are_refused_before_anything_is_opened(
    model: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those of the last of several models: neither a first one's weights nor the pictures are looked at."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("something was opened")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.pth").write_bytes(b"never read")
    for place in ("measuring.open_data", "probing.open_data"):
        monkeypatch.setattr(f"diffusionlens.api.{place}", opened)
    monkeypatch.setattr("diffusionlens.models.load.read_weights", opened)
    monkeypatch.setattr("diffusionlens.models.load.from_timm", opened)
    first = "a=shipped:mini_softmax_seed0"
    models = ["--model", first, "--model", model] if command[0] == "report" else [first, model]
    learned = [] if command[0] == "measure" else ["--train", DATA]
    line = refused([*command, *models, "--data", DATA, *learned, "--out", "o"], monkeypatch, capsys)
    assert model.partition("?")[2].partition("&")[0].partition("=")[2][:20] in line
    assert [path.name for path in tmp_path.iterdir()] == ["b.pth"]


EMPTY = {
    "--out of measure": (["measure", MODEL, "--data", DATA, "--out", ""], "--out is empty"),
    "--out of probe": (["probe", "depth", MODEL, "--data", DATA, "--train", DATA, "--out", " "], "--out is empty"),
    "--out of compare": (["compare", "a", "b", "--out", ""], "--out is empty"),
    "--out of track": (["track", "run", "--data", DATA, "--out", ""], "--out is empty"),
    "--out of report": (["report", "quick", "--model", MODEL, "--data", DATA, "--out", ""], "--out is empty"),
    "--out of train": (["train", "tiny_scenes_softmax", "--data", DATA, "--out", ""], "--out is empty"),
    "--out of demo": (["demo", "--out", ""], "--out is empty"),
    "--cache": (["probe", "depth", MODEL, "--data", DATA, "--train", DATA, "--out", "o", "--cache", ""], "--cache is empty"),
    "--heads": (["probe", "depth", MODEL, "--data", DATA, "--out", "o", "--heads", ""], "--heads is empty"),
    "MODEL": (["measure", "", "--data", DATA, "--out", "o"], "MODEL '' is empty; wanted [label=]timm:NAME"),
    "MODEL behind a label": (["measure", "a=", "--data", DATA, "--out", "o"], "MODEL 'a=' names nothing"),
    "MODEL of check": (["check", ""], "MODEL '' is empty"),
    "MODEL of report": (["report", "quick", "--model", "", "--data", DATA, "--out", "o"], "MODEL '' is empty"),
    "DATA": (["measure", MODEL, "--data", "", "--out", "o"], "--data '' is empty; wanted [label=]KIND:ROOT"),
    "DATA behind a label": (["measure", MODEL, "--data", "a=", "--out", "o"], "--data 'a=' names nothing"),
    "DATA of check": (["check", "--data", ""], "--data '' is empty"),
    "DATA of train": (["train", "tiny_scenes_softmax", "--data", "", "--out", "o"], "--data '' is empty"),
    "DATA of report": (["report", "quick", "--model", MODEL, "--data", "", "--out", "o"], "--data '' is empty; wanted [ROLE=]DATA"),
    "--train": (["probe", "depth", MODEL, "--data", DATA, "--train", "", "--out", "o"], "--train '' is empty"),
    "--train of report": (["report", "quick", "--model", MODEL, "--data", DATA, "--train", "", "--out", "o"], "--train '' is empty"),
    "--diagnose": (["train", "tiny_scenes_softmax", "--data", DATA, "--out", "o", "--diagnose", ""], "--diagnose '' is empty"),
    "?boxes": (["measure", MODEL, "--data", "folder:p?boxes=", "--out", "o"], "?boxes in 'folder:p?boxes=' is empty"),
    "?list": (["measure", MODEL, "--data", "nyuv2:p?list=", "--out", "o"], "?list in 'nyuv2:p?list=' is empty"),
    "RUN": (["track", "", "--data", DATA, "--out", "o"], "RUN '' is empty"),
    "DIR": (["compare", "", "b", "--out", "o"], "DIR '' is empty"),
}  # fmt: skip
"""What a shell makes of a variable that is not set."""


@pytest.mark.parametrize("kind", list(EMPTY))
def test_what_is_empty_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "p" / "a.png")
    arguments, said = EMPTY[kind]
    assert refused(arguments, monkeypatch, capsys).startswith(f"error: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_an_empty_path_is_refused_of_a_program_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for begin in (
        lambda: diffusionlens.measure(MODEL, DATA, ""),
        lambda: diffusionlens.train("tiny_scenes_softmax", DATA, ""),
        lambda: diffusionlens.demo(""),
        lambda: diffusionlens.probe("depth", MODEL, DATA, DATA, "o", cache=""),
    ):
        with pytest.raises(InputError, match=r"^--(out|cache) is empty; wanted"):
            begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (["segmentaton=folder:p"], "'segmentaton' was taken for a label, as the plan has the roles .*did you mean 'segmentation'"),
        (["pictures=scenes:?n=8", "nonrole=folder:p"], "'nonrole' was taken for a label, as the plan has the roles pictures, segmentation$"),
    ],
)  # fmt: skip
def test_a_label_that_was_meant_for_a_role(
    data: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "p" / "a.png")
    given = [part for one in data for part in ("--data", one)]
    line = refused(["report", "quick", "--model", MODEL, *given, "--train", DATA, "--out", "o"], monkeypatch, capsys)
    assert re.search(said, line), line


NUMBERS = {
    "--images": ["measure", MODEL], "--batch-size": ["measure", MODEL], "--workers": ["measure", MODEL], "--seed": ["probe", "depth", MODEL],
    "--explore": ["measure", MODEL], "--seeds": ["probe", "depth", MODEL], "--checkpoints": ["track", "run"],
    "--diagnose-images": ["train", "tiny_scenes_softmax"], "--rounds": ["bench", "train"], "--steps": ["bench", "train"],
    "--threads": ["bench", "measure"],
}  # fmt: skip
"""Every option that takes a number, with a command of it."""


@pytest.mark.parametrize("value", ["nan", "1e99", "²", "", "1_000", "0x10", "-7", "9" * 5000])
@pytest.mark.parametrize("option", list(NUMBERS))
def test_numbers(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = [] if NUMBERS[option][0] == "bench" else ["--out", "o"]
    line = refused([*NUMBERS[option], "--data", DATA, *out, f"{option}={value}"], monkeypatch, capsys)
    assert line.startswith(f"error: {option} {value}"[:500])
    assert "; wanted a whole number from " in line
    assert list(tmp_path.iterdir()) == []


def test_every_number_is_among_them() -> None:
    """Options that typer reads as numbers by itself are refused in words of its own."""
    named = set()
    for command in [*app.registered_commands, *bench.registered_commands]:
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, option = (hint.__origin__, hint.__metadata__[0]) if hasattr(hint, "__metadata__") else (hint, None)
            if {int, float} & {kind, *get_args(kind)}:
                assert option.parser is not None, (command.callback, option)
                named.add(f"--{name.replace('_', '-')}")
    assert named == set(NUMBERS)


def test_a_size_says_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["measure", MODEL, "--data", DATA, "--out", str(tmp_path / "o"), "--size", "99999999"]
    line = refused(given, monkeypatch, capsys)
    assert line.startswith("error: --size '99999999' is not a picture size; wanted N or HxW")
    assert "sides from 1 to 8192 pixels" in line


ODD_RECIPES = {
    "empty": "", "a list": "- 1\n", "a number": "7\n", "not YAML": "a: [1\n", "code": "!!python/object/apply:os.system ['true']\n",
    "twice": "seed: 1\nseed: 2\n", "itself": "extends: own\n", "a circle of lists": "&a [*a]\n", "extends a number": "extends: 3\n",
    "extends nothing": "extends: nowhere\n", "an unknown key": "extends: tiny_scenes_softmax\nlearning_rate: 1\n",
    "a section as a number": "extends: tiny_scenes_softmax\noptimizer: 3\n", "a number as a section": "extends: tiny_scenes_softmax\nseed: {a: 1}\n",
    "a key that is no text": "extends: tiny_scenes_softmax\n? [1, 2]\n: 3\n", "NaN": "extends: tiny_scenes_softmax\noptimizer: {lr: .nan}\n",
    "infinity": "extends: tiny_scenes_softmax\noptimizer: {lr: .inf}\n", "negative": "extends: tiny_scenes_softmax\nbatch_size: -4\n",
    "text for a number": "extends: tiny_scenes_softmax\nbatch_size: many\n", "a date": "extends: tiny_scenes_softmax\nlength: 2020-01-01\n",
    "anchors without end": "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b]\nextends: tiny_scenes_softmax\n",
    "a control character": "extends: \"own\\e[31m\"\n", "two documents": "a: 1\n---\nb: 2\n", "a tab": "a:\n\tb: 1\n", "an alias of nothing": "a: *b\n",
    "deep": "[" * 500, "null": "~\n",
    "an alias inside itself": "extends: tiny_scenes_softmax\nx: &x {y: *x}\n", "a date as a key": "extends: tiny_scenes_softmax\n2020-01-01: 3\n",
    "no date": "extends: tiny_scenes_softmax\nseed: 2020-13-45\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ODD_RECIPES))
def test_recipes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.yaml").write_text(ODD_RECIPES[kind], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    refused(["train", "own.yaml", "--data", "scenes:?n=64", "--out", "run"], monkeypatch, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["own.yaml"]


def result(folder: Path) -> Path:
    folder.mkdir()
    (folder / "results.csv").write_text(
        "model,data,analysis,metric,layer,head,token,value,low,high,n\na,d,pib,pib,1,,,5,4,6,9\n"
    )
    (folder / "manifest.json").write_text(
        json.dumps({"models": [{"label": "a"}], "data": [{"label": "d", "spec": "scenes:"}]})
    )
    return folder


HEAD = "model,data,analysis,metric,layer,head,token,value,low,high,n\n"
ODD_RESULTS = {
    "manifest: a list": ("manifest.json", b"[]"), "manifest: a number": ("manifest.json", b"7"), "manifest: empty": ("manifest.json", b""),
    "manifest: not UTF-8": ("manifest.json", b'{"models": "\xff"}'), "manifest: deep": ("manifest.json", b"[" * 100_000),
    "manifest: models a text": ("manifest.json", b'{"models": "abc", "data": [{"label": "d", "spec": "scenes:"}]}'),
    "manifest: a model a number": ("manifest.json", b'{"models": [3], "data": [{"label": "d", "spec": "scenes:"}]}'),
    "manifest: no data": ("manifest.json", b'{"models": [{"label": "a"}]}'),
    "manifest: data a number": ("manifest.json", b'{"models": [{"label": "a"}], "data": 3}'),
    "manifest: empty data": ("manifest.json", b'{"models": [{"label": "a"}], "data": []}'),
    "manifest: two of one name": ("manifest.json", b'{"models": [{"label": "a"}, {"label": "a"}], "data": [{"label": "d", "spec": "scenes:"}]}'),
    "manifest: no spec": ("manifest.json", b'{"models": [{"label": "a"}], "data": [{"label": "d"}]}'),
    "manifest: spec a number": ("manifest.json", b'{"models": [{"label": "a"}], "data": [{"label": "d", "spec": 5}]}'),
    "manifest: analyses a list": ("manifest.json", b'{"models": [{"label": "a"}], "data": [{"label": "d", "spec": "scenes:"}], "analyses": [1]}'),
    "manifest: checkpoints a number": ("manifest.json", b'{"models": [{"label": "a"}], "data": [{"label": "d", "spec": "scenes:"}], "checkpoints": 5}'),
    "results: empty": ("results.csv", b""), "results: other columns": ("results.csv", b"a,b\n1,2\n"),
    "results: text for a number": ("results.csv", HEAD.encode() + b"a,d,pib,pib,1,,,many,4,6,9\n"),
    "results: half a layer": ("results.csv", HEAD.encode() + b"a,d,pib,pib,1.5,,,5,4,6,9\n"),
    "results: more cells": ("results.csv", HEAD.encode() + b"a,d,pib,pib,1,,,5,4,6,9,10,11\n"), "results: binary": ("results.csv", b"\0\1\2\xff" * 50),
    "pictures: not gzip": ("per_image.csv.gz", b"name"), "pictures: cut short": ("per_image.csv.gz", gzip.compress(b"model,data\n" * 99)[:30]),
    "pictures: other columns": ("per_image.csv.gz", gzip.compress(b"a,b\n1,2\n")),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ODD_RESULTS))
def test_results_to_compare(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content = ODD_RESULTS[kind]
    (result(tmp_path / "odd") / name).write_bytes(content)
    result(tmp_path / "good")
    monkeypatch.chdir(tmp_path)
    refused(["compare", "good", "odd", "--out", "o"], monkeypatch, capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "odd"]


ODD_RUNS = {
    "no manifest": None, "a list": b"[]", "empty": b"", "no steps": b"{}", "no step an epoch": b'{"steps_per_epoch": 0}',
    "a fraction": b'{"steps_per_epoch": 1.5}', "true": b'{"steps_per_epoch": true}', "deep": b"[" * 100_000, "not UTF-8": b"\xff\xfe",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ODD_RUNS))
def test_runs_to_track(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "teacher").mkdir(parents=True)
    (tmp_path / "run" / "recipe.yaml").write_text("")
    (tmp_path / "run" / "teacher" / "epoch_0001.safetensors").write_bytes(b"nothing")
    if (content := ODD_RUNS[kind]) is not None:
        (tmp_path / "run" / "manifest.json").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    refused(["track", "run", "--data", DATA, "--out", "o"], monkeypatch, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("command", [["report", "--model", MODEL], ["train", "--data", DATA]])
def test_aliases_of_aliases_are_not_written_out(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve lines that stand for 9^12 values; all machines of the world would wait for them."""
    names = "abcdefghijkl"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]" for last, name in pairwise(names)]
    (tmp_path / "many.yaml").write_text("\n".join(lines))
    line = refused(
        [command[0], str(tmp_path / "many.yaml"), *command[1:], "--out", str(tmp_path / "o")], monkeypatch, capsys
    )
    assert "aliases" in line
    assert not (tmp_path / "o").exists()
