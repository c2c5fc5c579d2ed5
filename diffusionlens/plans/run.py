"""Runs the jobs of a plan. What is finished is kept in a folder beside the report, and found again after an interruption."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from diffusionlens.analysis.measure import Progress, measure, parse_layers, refuse_doubles
from diffusionlens.analysis.outcome import versions
from diffusionlens.analysis.probes.cached.store import model_digest
from diffusionlens.analysis.probes.heads.kinds import parse_kinds
from diffusionlens.analysis.probes.probe import probe
from diffusionlens.analysis.probes.run import ProbeSettings
from diffusionlens.analysis.probes.settings.presets import recipe_for
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.registry import parse_options
from diffusionlens.analysis.run import Measurement, Settings
from diffusionlens.analysis.track import find_moments, set_aside, track
from diffusionlens.capture import capture
from diffusionlens.data import open_data
from diffusionlens.data.digest import content_of
from diffusionlens.errors import InputError
from diffusionlens.locks import BusyError, Lock, lock
from diffusionlens.models import load_models, prepare_models
from diffusionlens.models.checkpoints.weights_file import sha256
from diffusionlens.models.run_directory import is_run
from diffusionlens.plans.jobs import Job
from diffusionlens.plans.parts import read_part, save_part
from diffusionlens.spec import expand_path, parse_size, parse_spec

_LOCK = ".lock"


@dataclass(frozen=True)
class Hardware:
    """Where and how it is computed; no part of a key but for the device, whose numbers may differ."""

    device: str = "auto"
    batch_size: int | None = None
    workers: int = 0


@dataclass
class Models:
    """The models of a report as MODEL strings, checked: `labels`, a `digest` each, and those that are training runs."""

    given: list[str]
    labels: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


def check_models(given: Sequence[str], jobs: Sequence[Job], layers: Collection[str]) -> Models:
    """Loads every model once, at every size that is asked for, so that what can't be measured is known before any work.
    `layers`: what the sections ask for.

    Raises:
        InputError: a model can't be loaded or take that size, two have one name, or a track has no run.
    """
    models = Models(list(given))
    sizes = {job.size for job in jobs if job.kind != "track"}
    for text, open_model in zip(given, prepare_models(given), strict=True):
        backbone = open_model()
        models.labels.append(backbone.label)
        models.digests.append(model_digest(backbone))
        for size in sorted(sizes, key=str):
            backbone.set_size(backbone.default_size() if size is None else parse_size(size))
            capture(backbone, torch.zeros(1, 3, *backbone.size), layers={backbone.depth})
        for wanted in layers:
            parse_layers(wanted, backbone.depth, backbone.label, "layers of the plan:")
        if is_run(expand_path(parse_spec(text).rest)):
            models.runs.append(text)
    refuse_doubles(models.labels)
    if any(job.kind == "track" for job in jobs):
        if not models.runs:
            raise InputError(
                "the plan tracks models over training, and none of the models given is a training run; give --model RUN, a "
                "folder that `diffusionlens train` made"
            )
        find_moments(models.runs)
    return models


class Workshop:
    """Finished parts in the folder `place`: each under a key of everything that it depends on."""

    def __init__(self, place: Path, models: Models, seed: int, hardware: Hardware) -> None:
        self.place, self.models, self.seed, self.hardware = place, models, seed, hardware
        self._code = _code_digest()
        self._lock: Lock | None = None

    def open(self, *, resume: bool) -> None:
        """Makes the folder; without `resume` what an earlier run left is thrown away.

        Raises:
            InputError: the folder can't be made.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.place / _LOCK)
            before = [path for path in self.place.iterdir() if path.name != _LOCK]
            for left in before:
                if not resume or left.suffix == ".part" or left.name.startswith(".diffusionlens-"):
                    shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
        except BusyError:
            raise InputError(f"another report is writing {self.place}; wait for it, or choose another --out") from None
        except OSError as error:
            raise InputError(f"{self.place} can't be made ({error.strerror}); choose another --out") from None

    def close(self) -> None:
        """Throws the parts away."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Lets another report work here."""
        if self._lock is not None:
            self._lock.release()

    def key(self, job: Job) -> str:
        """Of the request, the models, the pictures, versions and the code of this package."""
        data = [text for text in (job.pair.test, job.pair.train) if text is not None]
        pictures = []
        for text in data:
            source = open_data(text)
            pictures.append(content_of(source, range(len(source))).hex())
        weights = _moments_digest(self.models.runs) if job.kind == "track" else self.models.digests
        facts = (
            job.request(), self.models.given, self.models.labels, weights, pictures, self.seed, self.hardware.device,
            versions(), self._code,
        )  # fmt: skip
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:24]

    def do(self, job: Job, progress: Progress, processes: Processes) -> tuple[Measurement | None, bool]:
        """The job's measurement, as it is on the disk (None in processes other than the first), and whether it was there."""
        found, place = None, self.place
        with processes.together():
            if processes.rank == 0:
                place = self.place / self.key(job)
                found = read_part(place)
        if processes.share(found is not None):
            return found, True
        started = time.monotonic()
        done = _work(job, self, progress, processes)
        with processes.together():
            if done is not None:
                done.manifest["wall_seconds"] = round(time.monotonic() - started, 2)
                try:
                    save_part(done, place)
                except OSError as error:
                    raise InputError(f"{place} could not be written ({error.strerror}); choose another --out") from None
                found = read_part(place)
                assert found is not None
        return found, False


def _work(job: Job, shop: Workshop, progress: Progress, processes: Processes) -> Measurement | None:
    return {"measure": _measure, "probe": _probe, "track": _track}[job.kind](job, shop, progress, processes)


def _settings(job: Job, shop: Workshop) -> Settings:
    return Settings(
        analyses=job.what,
        options=parse_options(job.options),
        layers=job.layers,
        images=job.images,
        size=None if job.size is None else parse_size(job.size),
        fit=job.fit,
        batch_size=shop.hardware.batch_size,
        device=shop.hardware.device,
        workers=shop.hardware.workers,
        seed=shop.seed,
    )


def _measure(job: Job, shop: Workshop, progress: Progress, processes: Processes) -> Measurement | None:
    with processes.together():
        backbones, source = load_models(shop.models.given), open_data(job.pair.test)
    return measure(backbones, source, _settings(job, shop), progress, processes)


def _probe(job: Job, shop: Workshop, progress: Progress, processes: Processes) -> Measurement | None:
    task = job.what[0]
    settings = ProbeSettings(
        task=task,
        preset=job.preset,
        recipe=recipe_for(task, job.preset, job.options),
        kinds=parse_kinds(job.tokens),
        layers=job.layers,
        seeds=job.seeds,
        size=None if job.size is None else parse_size(job.size),
        batch_size=shop.hardware.batch_size,
        device=shop.hardware.device,
        workers=shop.hardware.workers,
        seed=shop.seed,
        room=shop.place / "tokens",  # what a killed run leaves there is cleared away
    )
    with processes.together():
        backbones = load_models(shop.models.given)
        test, train = open_data(job.pair.test), open_data(str(job.pair.train))
    done = probe(backbones, test, train, settings, progress, processes)
    return None if done is None else done.measurement


def _track(job: Job, shop: Workshop, progress: Progress, processes: Processes) -> Measurement | None:
    with processes.together():
        whole, broken = set_aside(find_moments(shop.models.runs, job.checkpoints))
        source = open_data(job.pair.test)
    done = track(whole, source, _settings(job, shop), progress, processes, broken)
    return None if done is None else done.measurement


def _moments_digest(runs: Sequence[str]) -> list[str]:
    return [f"{moment.label} {sha256(moment.path)}" for moment in find_moments(runs)]


def _code_digest() -> str:
    """Of the package's own source: a version number does not change with every change."""
    room, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(room.rglob("*.py")):
        digest.update(str(path.relative_to(room)).encode())
        with suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def run_jobs(
    jobs: Sequence[Job],
    shop: Workshop,
    progress: Progress,
    say: Callable[[str], None] = lambda _: None,
    processes: Processes | None = None,
) -> list[Measurement]:
    """Every job's measurement, in order, none in processes other than the first; `say` is told which were there already."""
    processes = processes or Processes()
    done = []
    for place, job in enumerate(jobs):
        progress("sections", place, len(jobs))

        def inner(what: str, count: int, total: int, name: str = job.name) -> None:
            progress(f"{name}: {what}", count, total)

        measurement, there = shop.do(job, inner, processes)
        if measurement is None:
            continue
        if there:
            say(f"{job.name}: done before the interruption")
        done.append(measurement)
    progress("sections", len(jobs), len(jobs))
    return done
