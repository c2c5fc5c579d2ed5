"""A result directory read back: the tidy table, per-picture values and the manifest, as `compare` needs them."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, Field

from diffusionlens.errors import InputError, in_short
from diffusionlens.results import PER_IMAGE_COLUMNS, read_table
from diffusionlens.spec import expand_path, parse_spec

_WANTED = "wanted a directory that `measure`, `track` or `probe` made"


@dataclass(frozen=True)
class Result:
    """What a directory holds. `label`: the name that the user or the directory gives it."""

    label: str
    path: Path
    results: pd.DataFrame
    per_image: pd.DataFrame
    manifest: dict[str, Any]

    @property
    def models(self) -> list[str]:
        """The models in the order of the manifest."""
        return [str(entry["label"]) for entry in self.manifest["models"]]

    def entry(self, model: str) -> dict[str, Any]:
        """The manifest's entry of a model."""
        return next(entry for entry in self.manifest["models"] if entry["label"] == model)


class _Data(BaseModel):
    label: str | int | float
    spec: str


class _Checkpoint(BaseModel):
    model: str
    run: str


class _Manifest(BaseModel):
    """What is relied on of a manifest; the rest may be anything."""

    models: list[dict[str, Any]] = Field(min_length=1)
    data: list[_Data] = Field(min_length=1)
    analyses: dict[str, dict[str, Any]] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)
    checkpoints: list[_Checkpoint] = Field(default_factory=list)


def _refuse_doubles(labels: list[str], path: Path) -> None:
    if doubles := sorted({label for label in labels if labels.count(label) > 1}):
        raise InputError(f"{path} names two models '{doubles[0]}' in its manifest, which is damaged; {_WANTED}")


def read_result(text: str) -> Result:
    """Reads `[label=]DIR`.

    Raises:
        InputError: no such directory, not a result, or a damaged one.
    """
    spec = parse_spec(text, "DIR", "[label=]DIR, a directory that `measure`, `track` or `probe` made")
    path = expand_path(spec.rest)
    if not path.is_dir():
        raise InputError(f"{path} {'is a file' if path.exists() else 'does not exist'}; {_WANTED}")
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        _Manifest.model_validate(manifest)
        for model in manifest["models"]:
            model["label"] = str(model["label"])
        _refuse_doubles([model["label"] for model in manifest["models"]], path)
        results = read_table(path / "results.csv")
        per_image = _read_per_image(path / "per_image.csv.gz")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} has no {Path(str(error.filename)).name}; {_WANTED}") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RecursionError, zlib.error) as error:
        reason = in_short(error)
        raise InputError(f"{path} can't be read as a result ({type(error).__name__}: {reason}); {_WANTED}") from None
    return Result(spec.label or path.resolve().name, path, results, per_image, manifest)


def _read_per_image(path: Path) -> pd.DataFrame:
    """Per-picture values; a directory of an analysis without any has an empty file or none."""
    if not path.is_file():
        return pd.DataFrame(columns=PER_IMAGE_COLUMNS)
    texts = dict.fromkeys(("model", "data", "name", "analysis", "metric", "head", "token"), str)
    frame = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values={"layer": [""], "value": [""]})
    if list(frame.columns) != PER_IMAGE_COLUMNS:
        raise ValueError(f"{path.name} has the columns {', '.join(map(str, frame.columns))}")
    return frame.astype({"layer": "Int64", "value": float})
