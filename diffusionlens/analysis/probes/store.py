"""Tokens of a data set on disk: every layer one memory-mapped file, written once and found again by later runs."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.processes import Processes
from diffusionlens.capture import capture
from diffusionlens.data.batches import load_batches
from diffusionlens.data.digest import content_of
from diffusionlens.data.sample import Picture, PictureSource, Sample
from diffusionlens.data.transform import Fit, FitTransform
from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Backbone

_FORMAT = 1


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
        name = f"layer-{layer:02d}.npy"
        if name not in self._open:
            self._open[name] = np.load(self.folder / name, mmap_mode="r")
        values = torch.from_numpy(self._open[name][[self.rows[place] for place in pictures]]).float()
        cls = values[:, 0] if self.meta["cls"] else None
        rest = values[:, int(self.meta["cls"]) :]
        return cls, rest[:, 0] if self.meta["pooled"] else rest.unflatten(1, self.meta["grid"])

    def target(self, picture: int) -> Tensor:
        """The mask (uint8 values, 255 ignored) or depth (float32, NaN without reading) [H,W] of a picture."""
        name, offset, height, width = self.places[picture]
        kind = np.uint8 if self.meta["target"] == "mask" else np.float32
        if name not in self._open:
            self._open[name] = np.memmap(self.folder / name, dtype=kind, mode="r")
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
        """Everything that the tokens depend on: weights, code of the model, preprocessing, pictures."""
        digest = hashlib.sha256(model_digest(backbone).encode())
        facts = (_FORMAT, self.fit, self.pooled, self.target, self.source.spec)
        digest.update(repr(facts).encode("utf-8", "surrogateescape"))
        digest.update(content_of(self.source, self.indices))
        return digest.hexdigest()[:24]


def model_digest(backbone: Backbone) -> str:
    """Of the weights, the model's code, its size and its preprocessing: what tokens of given pictures depend on."""
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
        folder = cache / request.key(backbone)
        found = _read(folder, request.layers)
    if found is not None:
        return TokenStore(folder, found, 0)
    return _fill(backbone, request, folder, progress, processes)


def _read(folder: Path, layers: Collection[int]) -> dict[str, Any] | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if set(layers) <= set(meta["layers"]) else None


def _fill(
    backbone: Backbone, request: StoreRequest, folder: Path, progress: Progress, processes: Processes
) -> TokenStore:
    work = folder.with_name(f"{folder.name}.part")
    grid, wide = backbone.grid, backbone.norm is None  # unnormed tokens may be too large for 16 bits
    shape = (len(request.indices), int(backbone.has_cls) + (1 if request.pooled else grid[0] * grid[1]), backbone.width)
    kind = np.float32 if wide else np.float16
    try:
        with processes.together():
            if processes.rank == 0:
                _make(work, shape, np.dtype(kind), request.layers)
        with processes.together():
            part = _forward_all(backbone, request, work, progress, processes)
        parts = processes.gather(part)
        with processes.together():
            if processes.rank == 0:
                _finish(work, folder, _meta(backbone, request, parts))
        with processes.together():
            meta = _read(folder, request.layers)
            assert meta is not None
        return TokenStore(folder, meta, len(meta["rows"]))
    finally:
        if processes.rank == 0:
            shutil.rmtree(work, ignore_errors=True)


def _make(work: Path, shape: tuple[int, ...], kind: np.dtype[Any], layers: Sequence[int]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"--cache {work.parent} can't be made ({error.strerror}); choose another directory") from None
    needed, free = len(layers) * int(np.prod(shape)) * kind.itemsize, shutil.disk_usage(work).free
    if needed > 0.95 * free:
        raise InputError(
            f"tokens of {shape[0]} pictures and {len(layers)} layers need {needed / 1e9:.1f} GB in {work.parent}, where "
            f"{free / 1e9:.1f} are free; give fewer --layers, fewer pictures (?n=) or another --cache"
        )
    for layer in layers:
        np.lib.format.open_memmap(work / f"layer-{layer:02d}.npy", mode="w+", dtype=kind, shape=shape)


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
    what = f"{backbone.label}: tokens of {request.source.label}"
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
    (work / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    if folder.exists():  # of fewer layers, or damaged
        shutil.rmtree(folder, ignore_errors=True)
    os.replace(work, folder)  # noqa: PTH105
