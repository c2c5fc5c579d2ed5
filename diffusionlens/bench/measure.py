"""`bench measure`: all analyses over all layers, against the bare forward pass on the same decoded pictures."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from diffusionlens.analysis.diagnostic import Context, Diagnostic
from diffusionlens.analysis.measure import feed, needed_layers
from diffusionlens.analysis.outcome import rows_of
from diffusionlens.analysis.registry import STANDARD, make, parse_options
from diffusionlens.bench.machine import machine
from diffusionlens.data.batches import load_batches
from diffusionlens.data.open_data import open_data
from diffusionlens.data.sample import Batch
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.models import Backbone, load_model

_MEMORY_PICTURES = (100, 300)


@dataclass(frozen=True)
class MeasureBench:
    """Medians over the rounds, in milliseconds a picture; `parts` with one analysis each; memory in MiB."""

    machine: str
    model: str
    pictures: int
    rounds: int
    batch_size: int
    threads: int
    bare_ms: float
    all_ms: float
    parts: dict[str, float]
    peak_mib: dict[int, float]

    @property
    def ratio(self) -> float:
        """`measure` with all analyses over the bare forward pass."""
        return self.all_ms / self.bare_ms

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}

    def as_text(self) -> str:
        lines = [
            f"{self.model}, {self.pictures} pictures a round, batch {self.batch_size}, {self.threads} threads, "
            f"medians of {self.rounds} alternated rounds",
            self.machine,
            "",
            f"{'':<22}{'ms/picture':>12}{'ratio':>8}",
            f"{'bare forward':<22}{self.bare_ms:>12.1f}{1:>8.2f}",
        ]
        for name, cost in self.parts.items():
            lines.append(f"{'+ ' + name:<22}{cost:>12.1f}{cost / self.bare_ms:>8.2f}")
        lines.append(f"{'measure, all five':<22}{self.all_ms:>12.1f}{self.ratio:>8.2f}")
        if self.peak_mib:
            peaks = ", ".join(f"{peak:.0f} MiB at {count} pictures" for count, peak in self.peak_mib.items())
            lines += ["", f"peak memory of the process: {peaks}"]
        return "\n".join(lines)


def bench_measure(
    model: str, data: str, images: int, rounds: int, batch_size: int, threads: int | None, *, parts: bool, memory: bool
) -> MeasureBench:
    """Runs the comparison. The statistics of the whole data set (intervals, ranks, clusters) count as measuring."""
    if threads is not None:
        torch.set_num_threads(threads)
    backbone = load_model(model)
    backbone.set_size(backbone.default_size())
    batches = _decoded(backbone, data, images, batch_size)
    names = list(STANDARD)
    runs: dict[str, Callable[[], None]] = {"bare": lambda: _bare(backbone, batches)}
    for name in names if parts else []:
        runs[name] = partial(_measured, backbone, batches, data, [name])
    runs["all"] = lambda: _measured(backbone, batches, data, names)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # compiles, and warms the caches
    pictures = sum(len(batch) for batch in batches)
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1000 / pictures)
    medians = {name: median(values) for name, values in times.items()}
    return MeasureBench(
        machine=machine(),
        model=backbone.label,
        pictures=pictures,
        rounds=rounds,
        batch_size=batch_size,
        threads=torch.get_num_threads(),
        bare_ms=medians.pop("bare"),
        all_ms=medians.pop("all"),
        parts=medians,
        peak_mib={count: _peak(model, data, count, batch_size) for count in _MEMORY_PICTURES} if memory else {},
    )


def _decoded(backbone: Backbone, data: str, images: int, batch_size: int) -> list[Batch]:
    source = open_data(data, "--data")
    preparing = backbone.preprocessing
    transform = FitTransform(backbone.size, preparing.mean, preparing.std, interpolation=preparing.interpolation)
    indices = range(min(images, len(source)))
    return [batch for batch, _ in load_batches(source, transform, indices, batch_size) if batch is not None]


def _bare(backbone: Backbone, batches: list[Batch]) -> None:
    with torch.inference_mode():
        for batch in batches:
            backbone.model.forward_features(batch.images)  # type: ignore[operator]


def _measured(backbone: Backbone, batches: list[Batch], data: str, names: list[str]) -> None:
    options = parse_options([])
    indices = tuple(sample.index for batch in batches for sample in batch.samples)
    layers = tuple(range(backbone.depth + 1))
    context = Context(backbone, layers, indices, open_data(data).provides, seed=0, samples=indices[:6])
    made = [made for name in names if isinstance(made := make(name, context, options[name]), Diagnostic)]
    for batch in batches:
        feed(made, backbone, batch, needed_layers(context), torch.device("cpu"))
    for diagnostic in made:
        diagnostic.finish()
    rows_of(made)


def _peak(model: str, data: str, pictures: int, batch_size: int) -> float:
    """Peak resident memory in MiB of a fresh process that measures so many pictures; NaN where it can't be read."""
    code = (
        "import sys, json; from diffusionlens import measure; from diffusionlens.memory import peak_memory; "
        "a = json.loads(sys.argv[1]); "
        "measure(a['model'], a['data'], images=a['images'], batch_size=a['batch'], device='cpu'); "
        "print(peak_memory())"
    )
    request = json.dumps({"model": model, "data": data, "images": pictures, "batch": batch_size})
    done = subprocess.run([sys.executable, "-c", code, request], capture_output=True, text=True, check=False)
    said = done.stdout.split()[-1:]
    return int(said[0]) / 2**20 if done.returncode == 0 and said != ["None"] else float("nan")
