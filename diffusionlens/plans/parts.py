"""Finished parts of a report on disk: a measurement written whole or not at all, and read back to the last bit. No pickle."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from diffusionlens import material
from diffusionlens.analysis.run import Measurement
from diffusionlens.explorer import packed
from diffusionlens.per_image import PerImage
from diffusionlens.results import COLUMNS, PER_IMAGE_COLUMNS

_TEXTS = ("model", "data", "name", "analysis", "metric", "head", "token")
_ESCAPE = "surrogateescape"  # a file name may hold bytes that are no text


def save_part(measurement: Measurement, place: Path) -> None:
    """Writes a measurement as the folder `place`, which appears when it is whole."""
    work = place.with_name(f"{place.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, frame in (("results", measurement.results), ("per_image", measurement.per_image)):
        with (work / f"{name}.csv").open("w", encoding="utf-8", errors=_ESCAPE, newline="") as file:
            frame.to_csv(file, index=False, lineterminator="\n")
    arrays: dict[str, NDArray[Any]] = {}
    plain = {"manifest": measurement.manifest, "material": [_plain(entry, arrays) for entry in measurement.material]}
    np.savez(work / "material.npz", **arrays)  # type: ignore[arg-type]
    (work / "part.json").write_text(json.dumps(plain, default=str), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    work.rename(place)


def read_part(place: Path) -> Measurement | None:
    """What `save_part` wrote; None where there is none, or it can't be read."""
    try:
        plain = json.loads((place / "part.json").read_text(encoding="utf-8"))
        results = _read_frame(place / "results.csv", COLUMNS)
        per_image = _read_frame(place / "per_image.csv", PER_IMAGE_COLUMNS)
        with np.load(place / "material.npz", allow_pickle=False) as arrays:
            shown = [_rebuilt(entry, dict(arrays)) for entry in plain["material"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Measurement(results, PerImage([per_image]), shown, plain["manifest"])


def _read_frame(path: Path, columns: list[str]) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8", encoding_errors=_ESCAPE)[columns]
    read: dict[str, Any] = {}
    for name in columns:
        texts = frame[name].astype(object)
        if name in _TEXTS:
            read[name] = texts
        elif name in ("layer", "n"):
            read[name] = pd.array([None if text == "" else int(text) for text in texts], dtype="Int64")
        else:  # Python's own float gives every digit back
            read[name] = np.array([float(text or "nan") for text in texts])
    return pd.DataFrame(read, columns=columns)


def _plain(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Dataclasses of `material`, dictionaries, lists and tuples as JSON values; arrays go into `arrays`."""
    if isinstance(value, bytes):
        return {"bytes": _plain(np.frombuffer(value, np.uint8), arrays)["array"]}
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if dataclasses.is_dataclass(value):
        fields = [(field.name, _plain(getattr(value, field.name), arrays)) for field in dataclasses.fields(value)]
        return {"object": type(value).__name__, "fields": dict(fields)}
    if isinstance(value, dict):
        return {"items": [[_plain(key, arrays), _plain(own, arrays)] for key, own in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_plain(own, arrays) for own in value]}
    if isinstance(value, list):
        return [_plain(own, arrays) for own in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"material may not hold a {type(value).__name__}")


def _rebuilt(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_rebuilt(own, arrays) for own in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "bytes" in value:
        return arrays[value["bytes"]].tobytes()
    if "items" in value:
        return {_rebuilt(key, arrays): _rebuilt(own, arrays) for key, own in value["items"]}
    if "tuple" in value:
        return tuple(_rebuilt(own, arrays) for own in value["tuple"])
    fields = {name: _rebuilt(own, arrays) for name, own in value["fields"].items()}
    return dict(_classes())[value["object"]](**fields)


def _classes() -> Iterator[tuple[str, Any]]:
    """Every dataclass that material is made of."""
    for name, kind in [*vars(material).items(), *vars(packed).items()]:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield name, kind
