"""Diagnostics while a run trains: every numbered checkpoint is measured, and RUN/diagnostics grows by it."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from diffusionlens.analysis.measure import measure
from diffusionlens.analysis.run import Measurement, Settings
from diffusionlens.analysis.track import Moment, Track, join
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError
from diffusionlens.models import load_model
from diffusionlens.models.run_directory import list_weights
from diffusionlens.pages.track import write_track
from diffusionlens.per_image import PerImage
from diffusionlens.results import read_table

FOLDER = "diagnostics"


class Diagnosis:
    """Call it with the run directory and the step of a checkpoint that has just been written.

    What can't be measured or written is a line to `warn`, and training goes on. After a resumption the checkpoints of later
    steps, which training makes again, are replaced.
    """

    def __init__(self, source: PictureSource, settings: Settings, warn: Callable[[str], None]) -> None:
        self.source, self.settings, self.warn = source, settings, warn

    def __call__(self, run: Path, step: int) -> None:
        try:
            self._add(run, step)
        except InputError as error:
            self.warn(f"warning: the checkpoint of step {step} was not diagnosed: {error}; training goes on")

    def _add(self, run: Path, step: int) -> None:
        label = run.resolve().name
        weights = next(entry for entry in list_weights(run) if entry.step == step)
        backbone = load_model(str(weights.path))
        moment = Moment(label, weights.name, weights.epoch, weights.step, weights.path)
        backbone.label = moment.label
        measured = measure([backbone], self.source, self.settings)
        assert measured is not None
        place = run / FOLDER
        earlier = read_track(place, label, before=step) if place.is_dir() else None
        parts, moments = ([], []) if earlier is None else ([earlier.measurement], earlier.moments)
        write_track(join([*parts, measured], [*moments, moment]), place)


def read_track(directory: Path, run: str, before: int) -> Track | None:
    """What `write_track` wrote of one run, without the checkpoints from step `before` on; None where nothing is left.

    Raises:
        InputError: the directory is damaged.
    """
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        moments = [
            Moment(run, entry["name"], float(entry["epoch"]), int(entry["step"]), Path())
            for entry in manifest["checkpoints"]
            if entry["step"] < before
        ]
        old = {entry["model"]: moment.label for entry, moment in zip(manifest["checkpoints"], moments, strict=False)}
        per_image = pd.read_csv(
            directory / "per_image.csv.gz", dtype={"head": str, "token": str}, keep_default_na=False
        )
        results = read_table(directory / "results.csv")
        for name in ("models", "left_out"):
            key = "label" if name == "models" else "model"
            manifest[name] = [{**entry, key: old[entry[key]]} for entry in manifest[name] if entry[key] in old]
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{directory} can't be read ({type(error).__name__}: {error}); remove it to begin anew"
        ) from None
    if not moments:
        return None
    kept = []
    for frame in (results, per_image):
        chosen = frame[frame["model"].isin(list(old))].copy()  # the run may have been given another name meanwhile
        kept.append(chosen.assign(model=chosen["model"].map(old)).reset_index(drop=True))
    return Track(Measurement(kept[0], PerImage([kept[1]]), [], manifest), moments)
