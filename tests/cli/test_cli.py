"""The command: exit statuses, one clear line, results on standard output."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import diffusionlens
from diffusionlens.cli import main
from diffusionlens.pages import bundle

MODEL = "a=timm:vit_tiny_patch16_224?pretrained=false&img_size=64"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["diffusionlens", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.slow
def test_measure_as_a_program(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "diffusionlens", "measure", MODEL, "--data", "scenes:?n=4", "--layers", "last"]
    command += ["--analyses", "norms", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"page: {out / 'index.html'}"
    assert "a: pictures at 64 x 64 px, 4 at a time: 4/4" in done.stderr


@pytest.mark.slow
def test_the_same_arguments_give_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "draw_figures", lambda *_: [])
    tables = []
    for name in ("one", "two"):
        arguments = ["measure", MODEL, "--data", "scenes:?n=6&objects=2", "--out", str(tmp_path / name), "--json"]
        assert run(monkeypatch, *arguments) == 0
        assert json.loads(capsys.readouterr().out)["models"] == ["a"]
        tables.append((tmp_path / name / "results.csv").read_bytes())
    assert tables[0] == tables[1]


def test_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "check", MODEL, "--data", "scenes:?n=4&objects=3") == 0
    printed = capsys.readouterr().out
    assert "4 x 4 patches of 16 x 16 px" in printed
    assert "4 found, 4 opened, 0 unreadable" in printed
    assert run(monkeypatch, "check", MODEL, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"][0]["depth"] == 12
    assert found["data"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "timm:vit_smal_patch16_224", "--data", "scenes:", "--out", "o"],
        ["measure", MODEL, "--data", "vok:x", "--out", "o"],
        ["measure", MODEL, "--data", "voc:/nowhere", "--out", "o"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--size", "65"],
        ["measure", MODEL, "--data", "scenes:?n=2"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--images", "x"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "/proc/nowhere/o"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--images", "0"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--device", "meta"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "x" * 300],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "deep/o", "--layers", "99"],
        ["check", MODEL, "--data", "scenes:?n=2", "--images", "0"],
        ["check", MODEL, MODEL],
        ["bench", "measure", "--rounds", "0"],
        ["bench", "train", "--steps", "3", "--steps", "4"],
        ["bench", "attention", "--shapes", "99999x99x99999"],
        ["measure", MODEL, "--data", "scenes:?n=2", "--data=scenes:?n=3", "--out", "o"],
        ["check", "missing.pth"],
        ["nonsense"],
        ["meazure", MODEL],
        ["measure", MODEL, "--data", "scenes:?n=2", "--out", "o", "--imags", "3"],
        ["measure", MODEL, "--data"],
        ["check", MODEL, "--json=3"],
        ["check", MODEL, "-\x1b[31m"],
        ["check"],
    ],
)
def test_wrong_requests_exit_with_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert len(printed.err.splitlines()) == 1
    assert printed.err.rstrip("\n").isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", "bench"])
def test_a_command_alone_shows_what_there_is(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command.split()) == 2
    printed = capsys.readouterr()
    assert "Commands:" in printed.out + printed.err
    assert "measure" in printed.out + printed.err


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"diffusionlens {diffusionlens.__version__}\n"


def pictures(folder: Path, whole: int, broken: int) -> str:
    folder.mkdir()
    for place in range(whole):
        Image.new("RGB", (70, 80), (place, 0, 0)).save(folder / f"whole{place}.png")
    for place in range(broken):
        (folder / f"broken{place}.png").write_bytes(b"broken")
    return f"folder:{folder}"


def test_check_counts_what_it_could_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pictures(tmp_path / "pictures", 5, 2)
    assert run(monkeypatch, "check", MODEL, "--data", data) == 0
    printed = capsys.readouterr().out
    assert "7 found, 5 opened, 2 unreadable" in printed
    assert "70 x 80 to 70 x 80 px" in printed
    assert run(monkeypatch, "check", MODEL, "--data", data, "--images", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert found["opened"] + len(found["unreadable"]) == 3
    assert run(monkeypatch, "check", MODEL, "--data", pictures(tmp_path / "none", 0, 2)) == 0
    assert "2 found, 0 opened, 2 unreadable" in capsys.readouterr().out


def test_check_of_several_models_goes_on_after_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.pth").write_text("to do: train longer\n")
    models = [str(tmp_path / "notes.pth"), MODEL, "missing.pth"]
    assert run(monkeypatch, "check", *models) == 2
    printed = capsys.readouterr()
    assert "4 x 4 patches of 16 x 16 px" in printed.out
    assert "2 of 3 models can't be used: " in printed.err
    assert "notes.pth is a text file" in printed.err
    assert "missing.pth does not exist" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert run(monkeypatch, "check", *models, "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert [entry["model"] for entry in found["refused"]] == [models[0], "missing.pth"]
    assert [entry["label"] for entry in found["models"]] == ["a"]


def test_names_do_not_command_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    data = pictures(folder, 1, 0)
    (folder / "a\x1b[31m\n.png").write_bytes(b"broken")
    assert run(monkeypatch, "check", MODEL, "--data", data) == 0
    assert "a\\x1b[31m\\n.png" in capsys.readouterr().out
    assert run(monkeypatch, "measure", MODEL, "--data", data, "--out", "/proc/a\x1b[31m\nb") == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert "\x1b" not in printed


@pytest.mark.parametrize("command", ["", "check", "measure", "demo", "bench", "bench measure"])
def test_help_says_all_in_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, *command.split(), "--help") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert not [line for line in printed.splitlines()[1:] if line.endswith("...")]  # no sentence is cut
    if command in ("check", "measure"):
        assert "[label=]timm:NAME" in printed
        assert "[label=]KIND:ROOT[?key=value]" in printed


def started(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    # A shell's background job ignores SIGINT, and so do its children: the tests would wait for ever for one to end.
    ready = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    ready += "runpy.run_module('diffusionlens', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", ready, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **options)  # type: ignore[call-overload]


def test_no_place_for_temporary_files_is_one_line() -> None:
    """As on a machine where nothing can be written to; nothing heavy is imported before that is known."""
    nowhere = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/nowhere']; import diffusionlens"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", nowhere], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: no directory for temporary files can be written to; set TMPDIR to one that can\n"


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with started("check", MODEL, "--data", "scenes:?n=2", stdout=writer) as process:
        os.close(writer)
        assert process.stderr is not None
        assert [line for line in process.stderr if not line.startswith("scenes: ")] == []
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_that_cannot_be_printed_is_an_error() -> None:
    with Path("/dev/full").open("w") as full, started("check", MODEL, stdout=full) as process:
        assert process.stderr is not None
        assert (
            process.stderr.read()
            == "error: the result can't be printed (No space left on device); send it somewhere else\n"
        )
    assert process.returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("kind", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, kind: signal.Signals, status: int) -> None:
    arguments = ["measure", MODEL, "--data", "scenes:?n=100000", "--out", str(tmp_path / "deep" / "out")]
    with started(*arguments, stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert "0/100000" in process.stderr.readline()
        time.sleep(1)
        process.send_signal(kind)
        left = process.stderr.read()
    assert process.returncode == status
    assert "Traceback" not in left
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("diffusionlens.api.check", broken)
    monkeypatch.setattr(sys, "argv", ["diffusionlens", "check", MODEL])
    with pytest.raises(ZeroDivisionError):  # Python prints the traceback and exits with 1
        main()
