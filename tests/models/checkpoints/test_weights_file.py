"""Weights files of strangers: nothing in them runs, and damage is one clear line."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from diffusionlens.errors import InputError
from diffusionlens.models import load_model
from diffusionlens.models.checkpoints.weights_file import read_weights, sha256
from tests.models.files import plain_vit, refused, written


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_code_in_a_file_does_not_run(save, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "ran"
    save({"cls_token": torch.ones(1), "x": Attack(target)}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"refused|safely|not a whole") as caught:
        load_model(str(tmp_path / "w.pth"))
    assert not target.exists()
    assert "\n" not in str(caught.value)


def test_the_refusal_names_what_was_asked_for(tmp_path: Path) -> None:
    torch.save({"x": Attack(tmp_path / "ran")}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"asks to run or build (posix|nt)\.system"):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["w", "w.ckpt", "w.pth.tar", "w.pth", "w.safetensors", "w.PTH", "checkpoint0040"])
def test_the_content_says_what_a_file_is(name: str, tmp_path: Path) -> None:
    state = plain_vit().state_dict()
    kinds: dict[str, Callable[[Path], None]] = {
        "zip": lambda path: torch.save(state, path),
        "pickle": lambda path: torch.save(state, path, _use_new_zipfile_serialization=False),
        "safetensors": lambda path: save_file(state, path),
    }
    for kind, save in kinds.items():
        save(tmp_path / name)
        if kind != "safetensors" and name.endswith(".safetensors"):
            with pytest.raises(InputError, match=r"holds what torch\.save writes, not safetensors; call it \.pth"):
                load_model(str(tmp_path / name))
            continue
        loaded = load_model(str(tmp_path / name)).model.state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in state.items()), kind


@pytest.mark.parametrize("content", [b"", b"GGUF\x03\0\0\0", b"\x89PNG\r\n\x1a\n", b"hello"])
def test_a_file_of_another_name_and_kind_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(InputError, match="is not a weights file"):
        load_model(str(tmp_path / "x.ckpt"))


def test_a_folder_says_which_weights_it_holds(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=r"or timm:NAME; it holds model\.safetensors$"):
        load_model(str(tmp_path))


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(InputError, match=r"can't be looked at \(Permission denied\)"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".bin"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "is a web page"),
        ("Gewichte: größer\n".encode(), "is a text file .it begins 'Gewichte: größer"),
        (b"\x00\x01garbage" * 50, "not a whole|safely"),
        (b"PK\x03\x04" + b"\x00" * 40, "not a whole|safely|not safetensors"),
    ],
)
def test_damage(suffix: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
def test_cut_short(share: float, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"patch_embed.proj.weight": torch.randn(64, 3, 8, 8)}, tmp_path / "w.safetensors")
    torch.save({"patch_embed.proj.weight": torch.randn(64, 3, 8, 8)}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError, match="whole"):
            load_model(str(tmp_path / name))


def test_missing_and_misnamed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_model(str(tmp_path / "no.pth"))
    with pytest.raises(InputError, match="is a folder"):
        load_model(str(tmp_path))
    with pytest.raises(InputError, match="did you mean timm:vit_small_patch16_224"):
        load_model("vit_small_patch16_224")
    with pytest.raises(InputError, match="no kind of model"):
        load_model("hub:dino")


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_checksums(tmp_path: Path) -> None:
    """torch writes them and does not read them: a bit that a disk turned would be measured. Who writes none has none to check."""
    state = plain_vit().state_dict()
    path = written(state, tmp_path / "w.pth")
    whole = path.read_bytes()
    at = whole.index(state["norm.weight"].numpy().tobytes()) + 102
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    assert not torch.equal(torch.load(path)["norm.weight"], state["norm.weight"])
    refused(path, r"wrong checksum: \S*data/\d+\)")
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        written(state, path)
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(load_model(str(path)).model.norm.weight, state["norm.weight"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_what_is_not_used_of_a_file_costs_no_memory(tmp_path: Path) -> None:
    """An optimiser's state is larger than the network; it stays on the disk."""
    content = {"model": plain_vit().state_dict(), "optimizer": {"state": torch.ones(50_000_000)}}
    path = written(content, tmp_path / "w.pth")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from diffusionlens import load_model\n"
        "load_model('timm:vit_tiny_patch16_224?pretrained=false&img_size=32')\n"
        "Path('/proc/self/clear_refs').write_text('5')\n"  # the peak from here on
        "def memory(what): return int(Path('/proc/self/status').read_text().split(what + ':')[1].split()[0])\n"
        "before = memory('VmRSS')\n"
        "load_model(sys.argv[1])\n"
        "print(memory('VmHWM') - before)\n"
    )
    del content
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(done.stdout) < 100_000  # kilobytes; the file holds 200,000
