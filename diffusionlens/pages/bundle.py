"""Everything of a measurement as a result directory."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

from diffusionlens.analysis.run import Measurement
from diffusionlens.pages.directory import whole_directory
from diffusionlens.pages.figures import draw_figures
from diffusionlens.pages.page import render_page
from diffusionlens.pages.tables import write_tables
from diffusionlens.results import write_table

_ESCAPE = "backslashreplace"  # a file name may hold bytes that are no text; JSON reads the escape back


def write_bundle(measurement: Measurement, out: Path | str, more: Callable[[Path], None] = lambda _: None) -> Path:
    """Writes everything of a measurement into `out` and returns the page's path.

    `more` may add what `directory.CONTENTS` declares. A directory that an earlier run made is replaced when the new one is
    complete.

    Raises:
        InputError: `out` holds something else, can't be written, or the disk is full (see `whole_directory`).
    """
    models = [entry["label"] for entry in measurement.manifest["models"]]
    with whole_directory(out) as directory:
        for name in ("figures", "tables"):
            (directory / name).mkdir()
        figures = draw_figures(measurement.results, models, measurement.material, directory / "figures")
        write_tables(measurement.results, models, directory / "tables")
        page = render_page(measurement.results, measurement.manifest, figures, measurement.material)
        write_measured(measurement, page, directory)
        more(directory)
    return Path(out).expanduser().resolve() / "index.html"


def write_measured(measurement: Measurement, page: str, directory: Path) -> None:
    """Writes the tidy table, per-picture values, the page and the manifest, all but figures and tables."""
    write_table(measurement.results, directory / "results.csv")
    _write_compressed(measurement, directory / "per_image.csv.gz")
    (directory / "index.html").write_text(page, encoding="utf-8", errors=_ESCAPE)
    manifest = json.dumps(measurement.manifest, indent=2, ensure_ascii=False, default=str)
    (directory / "manifest.json").write_text(manifest + "\n", encoding="utf-8", errors=_ESCAPE)


def _write_compressed(measurement: Measurement, path: Path) -> None:
    """The same bytes for the same values: gzip's time stamp is left out."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", errors=_ESCAPE, newline="")
        measurement.pictures.write(text)
        text.flush()
        text.detach()
