"""Files that only claim to be weights: whatever is in them, opening them is one line, and nothing of theirs runs."""

import gzip
import json
import os
import pickle
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from diffusionlens.models import load_model
from tests.models.files import plain_vit, refused, written

Make = Callable[[Path], Path]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    CASES[make.__name__] = make
    return make


def state() -> dict[str, torch.Tensor]:
    return dict(plain_vit().state_dict())


def raw(name: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return make


class Runs:
    """A pickle that makes a file when it is built."""

    def __init__(self, folder: Path, function: Any = os.system) -> None:
        self.folder, self.function = folder, function

    def __reduce__(self) -> Any:
        target = self.folder / "ran"
        if self.function is os.system:
            return os.system, (f"touch '{target}'",)
        return self.function, (f"open({str(target)!r}, 'w').close()",)


# --- bytes ----------------------------------------------------------------------------------------------------------

CASES |= {f"garbage as {end}": raw(f"w{end}", bytes(range(256)) * 9) for end in (".pth", ".pt", ".bin", ".safetensors")}
CASES |= {
    "one byte": raw("w.pth", b"\x80"),
    "line feeds": raw("w.pth", b"\n" * 600),
    "gzip": raw("w.pth", gzip.compress(pickle.dumps({"cls_token": 1}))),
    "text": raw("w.pth", b"cls_token: 1\n"),
    "an HTML page with a byte order mark": raw("w.pth", b"\xef\xbb\xbf<!DOCTYPE html><html></html>"),
    "pickle of a number": raw("w.pth", pickle.dumps(7)),
    "pickle of text": raw("w.pth", pickle.dumps("patch_embed.proj.weight")),
    "pickle of numbers by name": raw("w.pth", pickle.dumps({"patch_embed.proj.weight": 1.0})),
    "pickle of arrays": raw("w.pth", pickle.dumps({"patch_embed.proj.weight": np.ones((2, 3, 8, 8))})),
    "pickle that never ends": raw("w.pth", b"\x80\x02(" + b"]" * 50_000),
    "pickle without a stop": raw("w.pth", b"\x80\x02}q\x00"),
    "pickle in words of 1995": raw("w.pth", b"cos\nsystem\n(S'true'\ntR."),
}


def cut(suffix: str, share: float) -> Make:
    def make(folder: Path) -> Path:
        path = folder / f"w{suffix}"
        if suffix == ".safetensors":
            save_file(state(), path)
        else:
            torch.save(state(), path, _use_new_zipfile_serialization=suffix == ".pth")
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        return path

    return make


CASES |= {
    f"{end} cut at {share}": cut(end, share)
    for end in (".safetensors", ".pth", ".bin")
    for share in (0.01, 0.3, 0.7, 0.999)
}


# --- pickles --------------------------------------------------------------------------------------------------------


@case
def code_beside_the_weights(folder: Path) -> Path:
    return written({**state(), "extra": Runs(folder)}, folder / "w.pth")


@case
def code_for_a_key(folder: Path) -> Path:
    return written({"model": state(), Runs(folder, eval): 1}, folder / "w.pth")


@case
def code_in_an_old_pickle(folder: Path) -> Path:
    torch.save(
        {"state_dict": state(), "args": Runs(folder, exec)}, folder / "w.pth", _use_new_zipfile_serialization=False
    )
    return folder / "w.pth"


@case
def code_in_a_name_space(folder: Path) -> Path:
    from argparse import Namespace

    return written({"model": state(), "args": Namespace(hook=Runs(folder))}, folder / "w.pth")


@case
def a_whole_module(folder: Path) -> Path:
    return written(plain_vit(), folder / "w.pth")


@case
def torchscript(folder: Path) -> Path:
    path = folder / "w.pt"
    with zipfile.ZipFile(path, "w") as file:  # as torch.jit.save lays it out
        file.writestr("w/data.pkl", pickle.dumps({}))
        file.writestr("w/constants.pkl", pickle.dumps(()))
        file.writestr("w/code/__torch__.py", "raise SystemExit")
        file.writestr("w/version", "3\n")
    return path


@case
def dictionary_that_holds_itself(folder: Path) -> Path:
    content: dict[str, Any] = {"state_dict": {}}
    content["state_dict"]["state_dict"] = content
    return written(content, folder / "w.pth")


@case
def dictionaries_a_hundred_deep(folder: Path) -> Path:
    content: Any = state()
    for _ in range(100):
        content = {"model": content}
    return written(content, folder / "w.pth")


@case
def dictionaries_that_branch_without_end(folder: Path) -> Path:
    content: Any = {"x": torch.ones(1)}
    for _ in range(60):
        content = {"a": content, "b": content}
    return written(content, folder / "w.pth")


@case
def a_list_of_networks(folder: Path) -> Path:
    return written([state(), state()], folder / "w.pth")


# --- zip files ------------------------------------------------------------------------------------------------------


def rezipped(folder: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    written(state(), folder / "whole.pth")
    with zipfile.ZipFile(folder / "whole.pth") as old, zipfile.ZipFile(folder / "w.pth", "w", compression) as new:
        for entry in old.infolist():
            content = change(entry.filename, old.read(entry))
            if content is not None:
                new.writestr(entry.filename, content)
    return folder / "w.pth"


@case
def zip_without_a_pickle(folder: Path) -> Path:
    return rezipped(folder, lambda name, content: None if name.endswith("data.pkl") else content)


@case
def zip_without_a_tensor(folder: Path) -> Path:
    return rezipped(folder, lambda name, content: None if name.endswith("data/3") else content)


@case
def zip_with_short_tensors(folder: Path) -> Path:
    return rezipped(folder, lambda name, content: content[:7] if "/data/" in name else content)


@case
def zip_bomb(folder: Path) -> Path:
    return rezipped(
        folder,
        lambda name, content: content + b"\0" * 200_000_000 if name.endswith("data.pkl") else content,
        zipfile.ZIP_DEFLATED,
    )


@case
def zip_of_pictures(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "w.pth", "w") as file:
        file.writestr("../../picture.png", b"\x89PNG")
    return folder / "w.pth"


@case
def zip_with_an_unknown_compression(folder: Path) -> Path:
    return rezipped(folder, lambda _, content: content, zipfile.ZIP_LZMA)


@case
def tar(folder: Path) -> Path:
    with tarfile.open(folder / "w.pth", "w") as file:
        (folder / "pickle").write_bytes(pickle.dumps({}))
        for name in ("sys_info", "pickle", "storages", "tensors"):
            file.add(folder / "pickle", name)
    return folder / "w.pth"


# --- safetensors ----------------------------------------------------------------------------------------------------


def safetensors(header: Any, body: bytes = b"", length: int | None = None) -> Make:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return raw("w.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + body)


def entry(shape: list[int], end: int, kind: str = "F32", begin: int = 0) -> dict[str, Any]:
    return {"patch_embed.proj.weight": {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}}


CASES |= {
    "safetensors: a header longer than the file": safetensors({}, length=2**40),
    "safetensors: a header longer than memory": safetensors({}, length=2**63),
    "safetensors: no JSON": safetensors(b"{nonsense"),
    "safetensors: JSON of another kind": safetensors([1, 2]),
    "safetensors: JSON a thousand deep": safetensors(b"[" * 100_000),
    "safetensors: no tensors": safetensors({}),
    "safetensors: fewer bytes than claimed": safetensors(entry([10, 3, 8, 8], 7680), b"\0" * 100),
    "safetensors: a shape that does not go with the bytes": safetensors(entry([10**6, 3, 8, 8], 16), b"\0" * 16),
    "safetensors: a shape beyond 64 bits": safetensors(entry([2**40, 2**40], 16), b"\0" * 16),
    "safetensors: negative": safetensors(entry([-1, 3], 16), b"\0" * 16),
    "safetensors: backwards": safetensors(entry([4], 0, begin=16), b"\0" * 16),
    "safetensors: a type of the future": safetensors(entry([4], 16, kind="F31"), b"\0" * 16),
    "safetensors: eight bits": safetensors(entry([2, 3, 1, 1], 6, kind="F8_E4M3"), b"\0" * 6),
    "safetensors: four bits": safetensors(entry([2, 3, 1, 2], 6, kind="F4"), b"\0" * 6),
    "safetensors: whole numbers": safetensors(entry([2, 3, 1, 1], 48, kind="I64"), b"\0" * 48),
    "safetensors: bytes left over": safetensors(entry([4], 16), b"\0" * 999),
    "safetensors: a scalar": safetensors(entry([], 4), b"\0" * 4),
    "safetensors: no numbers at all": safetensors(entry([0, 3, 8, 8], 0)),
}


# --- what is not a file ---------------------------------------------------------------------------------------------


@case
def a_folder(folder: Path) -> Path:
    (folder / "w.pth").mkdir()
    return folder / "w.pth"


@case
def a_link_to_itself(folder: Path) -> Path:
    (folder / "w.pth").symlink_to("w.pth")
    return folder / "w.pth"


@case
def a_link_to_nothing(folder: Path) -> Path:
    (folder / "w.pth").symlink_to("gone.pth")
    return folder / "w.pth"


@case
def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.pth")
    return folder / "w.pth"


@case
def a_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "w.pth"))
    return folder / "w.pth"


@case
def a_device_without_end(folder: Path) -> Path:
    (folder / "w.pth").symlink_to("/dev/zero")
    return folder / "w.pth"


CASES |= {
    "a name of 300 letters": lambda folder: folder / f"{'x' * 300}.pth",
    "a path of 9,000 letters": lambda folder: folder / "/".join(["x" * 90] * 100) / "w.pth",
    "a file as a folder": lambda folder: raw("w.pth", b"x")(folder) / "w.pth",
    "a NUL": lambda folder: folder / "w\0.pth",
    "the home of nobody": lambda folder: Path("~nobody-of-this-name/w.pth"),
    "two lines and an escape": lambda folder: raw("two\nlines\x1b[31m\u202e.pth", b"x" * 9)(folder),
    "bytes that are no letters": lambda folder: raw(os.fsdecode(b"\xff\xfe.pth"), b"x" * 9)(folder),
}


@pytest.mark.parametrize("name", list(CASES))
def test_refused_in_one_line(name: str, tmp_path: Path) -> None:
    if os.name == "nt" and not name.isascii():
        pytest.skip("no such names")
    line = refused(CASES[name](tmp_path))
    assert not (tmp_path / "ran").exists()
    assert len(line) < 2_100


@pytest.mark.skipif(os.name == "nt" or getattr(os, "getuid", int)() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written(state(), tmp_path / "w.pth")
    path.chmod(0)
    refused(path, "permission")


def test_compressed_by_a_zip_program(tmp_path: Path) -> None:
    """torch never compresses; who packs a file again gets the same weights, not the compressed bytes as weights."""
    path = rezipped(tmp_path, lambda _, content: content, zipfile.ZIP_DEFLATED)
    loaded = load_model(str(path)).model.state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in state().items())
