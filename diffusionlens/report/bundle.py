"""Writing a result directory so that it is whole or not there."""

import gzip
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diffusionlens.analysis.run import Measurement
from diffusionlens.errors import InputError
from diffusionlens.report.figures import draw_figures
from diffusionlens.report.page import render_page
from diffusionlens.report.tables import write_tables
from diffusionlens.results import write_table

_CONTENTS = {"index.html", "results.csv", "per_image.csv.gz", "manifest.json", "figures", "tables"}
_CLUTTER = {".DS_Store", "Thumbs.db", "desktop.ini"}
_ESCAPE = "backslashreplace"  # a file name may hold bytes that are no text; JSON reads the escape back


def write_bundle(measurement: Measurement, out: Path) -> Path:
    """Writes everything of a measurement into `out` and returns the page's path.

    A directory that an earlier run made is replaced when the new one is complete.

    Raises:
        InputError: `out` holds something else, can't be written, or the disk is full; nothing is left behind.
    """
    models = [entry["label"] for entry in measurement.manifest["models"]]
    out = out.resolve()
    with whole_directory(out) as directory:
        for name in ("figures", "tables"):
            (directory / name).mkdir()
        write_table(measurement.results, directory / "results.csv")
        _write_compressed(measurement, directory / "per_image.csv.gz")
        figures = draw_figures(measurement.results, models, measurement.material, directory / "figures")
        write_tables(measurement.results, models, directory / "tables")
        page = render_page(measurement.results, measurement.manifest, figures)
        (directory / "index.html").write_text(page, encoding="utf-8", errors=_ESCAPE)
        manifest = json.dumps(measurement.manifest, indent=2, ensure_ascii=False, default=str)
        (directory / "manifest.json").write_text(manifest + "\n", encoding="utf-8", errors=_ESCAPE)
    return out / "index.html"


def check_target(out: Path) -> None:
    """Refuses a target that is not ours to replace, before any work is done.

    Raises:
        InputError: `out` is a file, or a directory with something else in it, or can't be written to.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; wanted a directory to make")
    place = out.resolve()
    if place == Path.cwd() or place in Path.cwd().parents:
        raise InputError(f"--out {out} is the directory you are in, or above it; name a new one inside")
    _check_contents(out)
    nearest = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        raise InputError(f"--out {out}: {nearest} can't be written to; choose another directory")


def _check_contents(out: Path) -> None:
    """A directory may be replaced when it is empty, or a result and nothing but a result."""
    if not out.is_dir():
        return
    try:
        names = {path.name for path in out.iterdir()} - _CLUTTER
    except OSError as error:
        raise InputError(f"--out {out} can't be read ({error.strerror}); choose another directory") from None
    if not names:
        return
    if not {"manifest.json", "results.csv"} <= names:
        raise InputError(f"--out {out} holds something that is not a result of diffusionlens; choose another directory")
    if strange := sorted(names - _CONTENTS):
        raise InputError(
            f"--out {out} holds an earlier result and also {strange[0]}, which would be lost; move that away or choose "
            f"another directory"
        )


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out` that takes its name when the block ends well, and vanishes when it does not."""
    check_target(out)
    temporary: Path | None = None
    missing = [parent for parent in out.parents if not parent.exists()]
    whole = False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        temporary.chmod(0o755)
        yield temporary
        _take_place(temporary, out)
        whole = True
    except OSError as error:
        raise InputError(
            f"--out {out} could not be written ({error.strerror or error}); nothing was left there"
        ) from None
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
        if not whole:
            with suppress(OSError):  # parents made for this, unless somebody has put something there since
                for parent in missing:
                    parent.rmdir()


def _take_place(temporary: Path, out: Path) -> None:
    """Gives `temporary` the name `out`; what stood there is kept until that has happened."""
    if not out.exists():
        temporary.replace(out)
        return
    _check_contents(out)  # again: measuring may have taken hours
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.parent))
    previous = old / "previous"
    try:
        out.replace(previous)
    except OSError:
        old.rmdir()
        raise
    try:
        temporary.replace(out)
    except OSError as error:
        try:
            previous.replace(out)
        except OSError:
            raise InputError(
                f"--out {out} could not be replaced ({error}); the earlier result is in {previous}"
            ) from None
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)  # only now is there nothing in it to lose


def _write_compressed(measurement: Measurement, path: Path) -> None:
    """The same bytes for the same values: gzip's time stamp is left out."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        text = io.TextIOWrapper(packed, encoding="utf-8", errors=_ESCAPE, newline="")
        measurement.per_image.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
        text.flush()
        text.detach()
