"""Reading weights files of strangers: tensors and plain values only, no code from the file is ever run."""

import argparse
import hashlib
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffusionlens.errors import InputError

SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")

# DINO and its descendants keep their command-line arguments in the file. A Namespace is a bare bag of attributes.
_ALLOWED: list[Any] = [argparse.Namespace]


def sha256(path: Path) -> str:
    """Hash of the file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_weights(path: Path) -> tuple[Mapping[str, Any], dict[str, str]]:
    """The content of a weights file, and its metadata (safetensors only).

    Raises:
        InputError: no such file, not a weights file, cut short, or holding objects other than tensors and plain values.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; wanted a weights file ({', '.join(SUFFIXES)})")
    _refuse_text(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _read_pickle(path), {}


def _refuse_text(path: Path) -> None:
    """Pointers and web pages saved under a weights name are the commonest damaged download."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise InputError(f"{path} is empty; download or copy it again")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(f"{path} is a web page, not a weights file; download it again")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file ({_one_line(error)}); copy it again") from None


def _read_pickle(path: Path) -> Mapping[str, Any]:
    try:
        with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own doubts about old pickles; what it can't read raises
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"(?:GLOBAL|global) ([\w.]+)", str(error))
        if found:
            raise InputError(
                f"{path} asks to run or build {found[1]}, which is refused; only tensors and plain values are read: "
                f"save the state_dict alone, with torch.save(model.state_dict(), path)"
            ) from None
        raise InputError(f"{path} is not a weights file that torch can read safely ({_one_line(error)})") from None
    except Exception as error:  # a damaged pickle raises of every kind, and says little that helps
        kind = type(error).__name__
        raise InputError(
            f"{path} is not a whole weights file (reading ends with {kind}); copy or download it again"
        ) from None
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}; wanted a dictionary of tensors (a state_dict)")
    return content


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
