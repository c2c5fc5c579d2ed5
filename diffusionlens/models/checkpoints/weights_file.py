"""Reading weights files of strangers: tensors and plain values only, no code from the file is ever run."""

import argparse
import hashlib
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from diffusionlens.conditions import refuse_shortage
from diffusionlens.errors import InputError, in_short, some

# What such files are usually called; one that has another name and begins like one of them is read, too (.ckpt, .pth.tar).
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
_TORCH = (b"PK\x03\x04", b"\x80")  # a zip; before torch 1.6 a pickle

# DINO and its descendants keep their command-line arguments in the file. A Namespace is a bare bag of attributes.
_ALLOWED: list[Any] = [argparse.Namespace]

_GROWTH = 20  # weights that a zip program has packed grow by two at most, constants among them included


def label_of(path: Path) -> str:
    """What a model is called whose user does not say."""
    return Path(path.name.removesuffix(".tar")).stem


def sha256(path: Path) -> str:
    """Hash of the file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_weights(path: Path, *, mapped: bool = False) -> tuple[Mapping[Any, Any], dict[str, str]]:
    """The content of a weights file, and its metadata (safetensors only).

    Args:
        mapped: tensors stay in the file until they are read, so that what is not used of a training file costs no memory;
            for who copies them at once, since the file may change.

    Raises:
        InputError: no such file, not a weights file, cut short, or holding objects other than tensors and plain values.
    """
    refuse_missing(path)
    try:
        head = _head(path)
        _refuse_text(path, head)
        if path.suffix == ".safetensors" and head.startswith(_TORCH) and not _is_safetensors(head):
            raise InputError(f"{path} holds what torch.save writes, not safetensors; call it .pth")
        if path.suffix == ".safetensors" or _is_safetensors(head):
            return _read_safetensors(path)
        return _read_pickle(path, mapped), {}
    except OSError as error:
        refuse_shortage(error, f"{path} can't be read")
        raise InputError(f"{path} can't be read ({error.strerror or error}); see its permissions") from None


def refuse_missing(path: Path) -> None:
    """
    Raises:
        InputError: no such file.
    """
    if not path.is_file():
        state = "is not a regular file" if path.exists() else "does not exist"
        raise InputError(f"{path} {state}; wanted a weights file ({', '.join(SUFFIXES)})")


def begins_like_weights(path: Path) -> bool:
    """Whether `path` is a file that begins as those of torch.save and safetensors do; what it is called says nothing.

    Raises:
        InputError: there is such a file, and it may not be read.
    """
    if not path.is_file():
        return False
    try:
        head = _head(path)
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror or error}); see its permissions") from None
    return head.startswith(_TORCH) or _is_safetensors(head)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)


def _is_safetensors(head: bytes) -> bool:
    """The length of the header in eight bytes, then the header, which is JSON."""
    return head[8:9] == b"{"


def _refuse_text(path: Path, head: bytes) -> None:
    """Pointers and web pages saved under a weights name are the commonest damaged download."""
    if not head:
        raise InputError(f"{path} is empty; download or copy it again")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(f"{path} is a web page, not a weights file; download it again")
    if (text := _as_text(head)) is not None:
        raise InputError(
            f"{path} is a text file (it begins {text[:40]!r}); wanted the weights that torch.save or safetensors wrote"
        )


def _as_text(head: bytes) -> str | None:
    """The beginning of a file as text; None where it is none: zip, pickle and safetensors all have control characters."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(sign.isprintable() or sign.isspace() for sign in text) else None


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            return tensors, dict(file.metadata() or {})
    except PermissionError:
        raise
    except Exception as error:  # besides its own errors, what torch raises for types and shapes that it does not have
        refuse_shortage(error, f"{path} can't be read")
        raise InputError(f"{path} is not a whole safetensors file ({_one_line(error)}); copy it again") from None


def _read_pickle(path: Path, mapped: bool) -> Mapping[Any, Any]:
    options: dict[str, Any] = {"mmap": True} if _check_zip(path) and mapped else {}
    try:
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own doubts about old pickles; what it can't read raises
            content = torch.load(path, map_location="cpu", weights_only=True, **options)
    except PermissionError:
        raise
    except Exception as error:  # a damaged pickle raises of every kind
        refuse_shortage(error, f"{path} can't be read")
        raise InputError(_why_unreadable(path, error)) from None
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}; wanted a dictionary of tensors (a state_dict)")
    return content


def _check_zip(path: Path) -> bool:
    """Whether a file is a whole zip with its entries as they are, as torch has written since 1.6: only those can be mapped.

    Raises:
        InputError: a checksum is wrong, which torch does not look at, or the entries grow beyond all measure when they are read.
    """
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            packed = [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
            broken = [] if packed else [entry.filename for entry in entries if not _intact(file, entry)]
    except Exception:  # no zip, or a damaged one, which raises of every kind; torch, which reads it next, says so
        return False
    unpacked = sum(entry.file_size for entry in packed)
    if unpacked > _GROWTH * path.stat().st_size:
        raise InputError(
            f"{path} unpacks to {unpacked / 1e6:.0f} MB, {_GROWTH} times its size or more; weights do not: refused"
        )
    if 0 < len(broken) < len(entries):  # all of them: torch was told to write no checksums
        raise InputError(f"{path} is damaged (wrong checksum: {some(broken)}); copy or download it again")
    return not packed


def _intact(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with file.open(entry) as content:
            while content.read(2**20):
                pass
    except zipfile.BadZipFile:
        return False
    return True


def _why_unreadable(path: Path, error: Exception) -> str:
    if "TorchScript" in str(error):
        return (
            f"{path} is a TorchScript program, which is not run; save its weights alone, with "
            f"torch.save(torch.jit.load({path.name!r}).state_dict(), path)"
        )
    found = re.search(r"(?:GLOBAL|global) ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
    if found:
        return (
            f"{path} asks to run or build {found[1]}, which is refused; only tensors and plain values are read: "
            f"save the state_dict alone, with torch.save(model.state_dict(), path)"
        )
    return f"{path} is not a whole weights file of torch: it is damaged, cut short or something else; copy it again"


def _one_line(error: Exception) -> str:
    return in_short(error)
