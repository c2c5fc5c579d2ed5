"""Tokens of a data set on disk: every layer one memory-mapped file, written once and found again by later runs."""

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusionlens.analysis.measure import Progress, going_on
from diffusionlens.analysis.processes import Processes
from diffusionlens.capture import capture
from diffusionlens.data.batches import load_batches
from diffusionlens.data.digest import content_of
from diffusionlens.data.sample import Picture, PictureSource, Sample
from diffusionlens.data.transforms.fit import Fit, FitTransform
from diffusionlens.errors import InputError, in_short
from diffusionlens.locks import temporary_directory
from diffusionlens.models.backbone import Backbone

_FORMAT = 2
_META = "meta.json"
_TRIES = 5


@dataclass(frozen=True)
class NativeLabels:
    """A model's transform for the picture, while mask and depth stay as the data set has them."""

    fit: FitTransform

    def __call__(self, picture: Picture, index: int) -> Sample:
        sample = self.fit(replace(picture, mask=None, depth=None), index)
        return replace(sample, mask=picture.mask, depth=picture.depth)


@dataclass
class TokenStore:
    """Tokens and labels of the readable pictures of a data set, in its order.

    `pooled`: every picture has CLS (where there is one) and the mean of its patches; otherwise CLS and all patches.
    """

    folder: Path
    meta: dict[str, Any]
    forwards: int
    """Pictures that went through the model for this run: 0 where the store was found."""

    def __post_init__(self) -> None:
        self.rows: list[int] = self.meta["rows"]
        self.places: list[list[Any]] = self.meta["targets"]
        self.labels: list[int | None] = self.meta["labels"]
        self._open: dict[str, NDArray[Any]] = {}
        kind = np.uint8 if self.meta["target"] == "mask" else np.float32
        for name in self.meta["files"]:  # at once: a file that is open stays, whatever another run does to the cache
            if name.endswith(".npy"):
                self._open[name] = np.load(self.folder / name, mmap_mode="r")
            elif (self.folder / name).stat().st_size:
                self._open[name] = np.memmap(self.folder / name, dtype=kind, mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def indices(self) -> list[int]:
        """Places in the data set."""
        return self.meta["indices"]

    @property
    def names(self) -> list[str]:
        return self.meta["names"]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def tokens(self, layer: int, pictures: Sequence[int]) -> tuple[Tensor | None, Tensor]:
        """CLS [B,D] or None, and patches [B,h,w,D] (or their mean [B,D]) of some pictures, float32."""
        values = torch.from_numpy(
            self._open[f"layer-{layer:02d}.npy"][[self.rows[place] for place in pictures]]
        ).float()
        cls = values[:, 0] if self.meta["cls"] else None
        rest = values[:, int(self.meta["cls"]) :]
        return cls, rest[:, 0] if self.meta["pooled"] else rest.unflatten(1, self.meta["grid"])

    def target(self, picture: int) -> Tensor:
        """The mask (uint8 values, 255 ignored) or depth (float32, NaN without reading) [H,W] of a picture."""
        name, offset, height, width = self.places[picture]
        flat = np.array(self._open[name][offset : offset + height * width])
        return torch.from_numpy(flat.reshape(height, width))

    def close(self) -> None:
        self._open.clear()


@dataclass(frozen=True)
class StoreRequest:
    """What to keep: `layers` of `source` at the model's present size. `target` is "mask", "depth" or "label"."""

    source: PictureSource
    indices: Sequence[int]
    layers: Sequence[int]
    fit: Fit
    pooled: bool
    target: str
    batch_size: int
    workers: int
    device: torch.device

    def key(self, backbone: Backbone) -> str:
        """What the tokens depend on: the model (`model_digest`), how pictures are fitted, and the pictures. Versions of the code,
        of timm and of torch are not in it."""
        digest = hashlib.sha256(model_digest(backbone).encode())
        facts = (_FORMAT, self.fit, self.pooled, self.target, self.source.spec)
        digest.update(repr(facts).encode("utf-8", "surrogateescape"))
        digest.update(content_of(self.source, self.indices))
        return digest.hexdigest()[:24]


def model_digest(backbone: Backbone) -> str:
    """Of the weights, the size, the preprocessing, the kind of attention and the printed form of the model, which has its modules
    and their settings and not their code."""
    facts = (backbone.origin.attention, backbone.size, backbone.preprocessing, repr(backbone.model))
    digest = hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape"))
    for name, value in sorted(backbone.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().float().numpy()).tobytes())
    return digest.hexdigest()


def open_store(
    backbone: Backbone, request: StoreRequest, cache: Path, progress: Progress, processes: Processes
) -> TokenStore:
    """The store of `request`: found in `cache`, or filled by one forward pass over the pictures, shared by all processes.

    Raises:
        InputError: no picture is readable, or the disk has no room.
    """
    with processes.together():
        key = request.key(backbone)
        found = _find(cache, key, request.layers) if processes.rank == 0 else None
    found = processes.share(found)
    if found is not None:
        folder, meta = found
        return TokenStore(folder, meta, 0)
    return _fill(backbone, request, cache, key, progress, processes)


def _find(cache: Path, key: str, layers: Collection[int]) -> tuple[Path, dict[str, Any]] | None:
    """A whole store of these tokens that has the layers, perhaps among others."""
    for folder in sorted(cache.glob(f"{key}-*")):
        meta = read_whole(folder)
        if meta is not None and set(layers) <= set(meta["layers"]):
            return folder, meta
    return None


def read_whole(folder: Path) -> dict[str, Any] | None:
    """What a store says of itself; None where it is not there, or not as it was written: every file has its checksum."""
    try:
        written = json.loads((folder / _META).read_text(encoding="utf-8"))
        meta: dict[str, Any] = written["meta"]
        if written["format"] != _FORMAT or written["checksum"] != _checksum_of(meta):
            return None
        return meta if all(_checksum(folder / name) == value for name, value in meta["files"].items()) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return value


def _checksum_of(meta: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def _fill(
    backbone: Backbone, request: StoreRequest, cache: Path, key: str, progress: Progress, processes: Processes
) -> TokenStore:
    grid, wide = backbone.grid, backbone.norm is None  # unnormed tokens may be too large for 16 bits
    shape = (len(request.indices), int(backbone.has_cls) + (1 if request.pooled else grid[0] * grid[1]), backbone.width)
    kind = np.dtype(np.float32 if wide else np.float16)
    layers = "_".join(map(str, sorted(request.layers)))
    folder = cache / f"{key}-{zlib.crc32(layers.encode()):08x}"
    with ExitStack() as stack:
        with processes.together():
            made = _work(cache, shape, kind, request.layers, stack) if processes.rank == 0 else None
        work = Path(str(processes.share(made)))
        with processes.together():
            part = _forward_all(backbone, request, work, progress, processes)
        parts = processes.gather(part)
        with processes.together():
            if processes.rank == 0:
                _finish(work, folder, _meta(backbone, request, parts))
        with processes.together():
            try:
                meta = json.loads((folder / _META).read_text(encoding="utf-8"))["meta"]
                return TokenStore(folder, meta, len(meta["rows"]))
            except (OSError, ValueError) as error:
                raise InputError(f"tokens in {folder} can't be read ({in_short(error)}); start again") from None


def _work(cache: Path, shape: tuple[int, ...], kind: np.dtype[Any], layers: Sequence[int], stack: ExitStack) -> Path:
    """A place of this run's own to fill, because two runs that share a cache may want the same tokens at once. All room is taken
    now: a disk that fills up under a memory map ends the process without a word."""
    needed = len(layers) * int(np.prod(shape)) * kind.itemsize
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = stack.enter_context(temporary_directory(cache, "filling-"))
        free = shutil.disk_usage(work).free
        if needed > 0.95 * free:
            raise InputError(
                f"tokens of {shape[0]} pictures and {len(layers)} layers need {needed / 1e9:.1f} GB in {cache}, where "
                f"{free / 1e9:.1f} are free; give fewer --layers, fewer pictures (?n=) or another --cache"
            )
        for layer in layers:
            path = work / f"layer-{layer:02d}.npy"
            np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
            if hasattr(os, "posix_fallocate"):
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"--cache {cache} is a file, or lies below one; choose a directory") from None
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"--cache {cache} has no room for {needed / 1e9:.1f} GB of tokens ({reason}); choose another directory"
        ) from None
    return work


@dataclass
class _Part:
    """What one process has read: for every readable picture (its row, name, label, place of its target)."""

    entries: list[tuple[int, str, int | None, list[Any]]]
    skipped: list[tuple[int, str, str]]
    notes: list[tuple[str, str]]


def _forward_all(
    backbone: Backbone, request: StoreRequest, work: Path, progress: Progress, processes: Processes
) -> _Part:
    rows = {index: row for row, index in enumerate(request.indices)}
    mine = list(request.indices)[processes.rank :: processes.count]
    preparing = backbone.preprocessing
    fit = FitTransform(backbone.size, preparing.mean, preparing.std, request.fit, preparing.interpolation)
    files = {layer: np.load(work / f"layer-{layer:02d}.npy", mmap_mode="r+") for layer in request.layers}
    name = f"targets-{processes.rank}.bin"
    part, done, offset = _Part([], [], []), 0, 0
    backbone.to(request.device)
    what = going_on(backbone, min(request.batch_size, len(mine)), f"tokens of {request.source.label}")
    progress(what, 0, len(mine))
    with (work / name).open("wb") as targets:
        for batch, skipped in load_batches(
            request.source, NativeLabels(fit), mine, request.batch_size, request.workers
        ):
            processes.stop_with_others()
            part.skipped += [(entry.index, entry.file, entry.reason) for entry in skipped]
            done += len(skipped) + (0 if batch is None else len(batch))
            progress(what, done, len(mine))
            if batch is None:
                continue
            trace = capture(backbone, batch.images.to(request.device), layers=request.layers)
            places = [rows[sample.index] for sample in batch.samples]
            for layer, file in files.items():
                tokens = trace.tokens(layer)
                patches = tokens.flat_patches.mean(1, keepdim=True) if request.pooled else tokens.flat_patches
                joined = patches if tokens.cls is None else torch.cat([tokens.cls[:, None], patches], 1)
                largest = float(joined.abs().max())
                if not largest <= float(np.finfo(file.dtype).max):  # NaN is not either
                    raise InputError(
                        f"{backbone.label}: tokens of layer {layer} reach {largest:g}, beyond the numbers that they are kept in "
                        f"({file.dtype}); the weights are out of all scale: check them with `diffusionlens check`"
                    )
                file[places] = joined.cpu().numpy()
            for sample in batch.samples:
                value = {"mask": sample.mask, "depth": sample.depth}.get(request.target)
                place: list[Any] = []
                if value is not None:
                    kept = value.to(torch.uint8) if request.target == "mask" else value.float()
                    targets.write(kept.contiguous().numpy().tobytes())
                    place = [name, offset, *kept.shape]
                    offset += kept.numel()
                part.entries.append((rows[sample.index], sample.name, sample.label, place))
                part.notes += [(sample.name, note) for note in sample.notes]
    for file in files.values():
        file.flush()
    backbone.to(torch.device("cpu"))
    return part


def _meta(backbone: Backbone, request: StoreRequest, parts: Sequence[_Part]) -> dict[str, Any]:
    skipped = sorted(entry for part in parts for entry in part.skipped)
    entries = sorted((entry for part in parts for entry in part.entries), key=lambda entry: entry[0])
    wanted = [entry for entry in entries if (entry[2] is not None if request.target == "label" else entry[3])]
    without = [name for _, name, label, place in entries if (label is None if request.target == "label" else not place)]
    if not wanted:
        reason = f"{skipped[0][1]}: {skipped[0][2]}" if skipped else f"no picture has a {request.target}"
        raise InputError(f"{request.source.label} has no picture to probe with (first: {reason})")
    return {
        "layers": list(request.layers),
        "grid": list(backbone.grid),
        "cls": backbone.has_cls,
        "pooled": request.pooled,
        "target": request.target,
        "rows": [entry[0] for entry in wanted],
        "indices": [request.indices[entry[0]] for entry in wanted],
        "names": [entry[1] for entry in wanted],
        "labels": [entry[2] for entry in wanted],
        "targets": [entry[3] for entry in wanted],
        "skipped": [[file, reason] for _, file, reason in skipped]
        + [[name, f"no {request.target}"] for name in without],
        "notes": sorted([name, note] for part in parts for name, note in part.notes),
    }


def _finish(work: Path, folder: Path, meta: dict[str, Any]) -> None:
    """Gives what is whole its name, unless another run has put the same there meanwhile."""
    files = {path.name: _checksum(path) for path in sorted(work.iterdir())}
    meta = meta | {"files": files}
    written = {"format": _FORMAT, "checksum": _checksum_of(meta), "meta": meta}
    (work / _META).write_text(json.dumps(written), encoding="utf-8")
    for _ in range(_TRIES):
        if read_whole(folder) is not None:
            return
        try:
            if folder.is_dir() and not folder.is_symlink():  # damaged
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)
            os.rename(work, folder)  # noqa: PTH104  (Path.rename says nothing of a target that is not empty)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
    raise InputError(f"{folder} is written by several runs at once; start this one again")
