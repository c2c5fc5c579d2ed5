"""`measure`: models and pictures to a result directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.measure import measure as measure_backbones
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.run import Measurement
from diffusionlens.api.requests import settings_of, silent
from diffusionlens.data import PictureSource, open_data
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.invocation import command_line
from diffusionlens.models import Backbone, prepare_models
from diffusionlens.pages.bundle import write_bundle
from diffusionlens.pages.directory import check_target
from diffusionlens.pages.findings import Finding, findings
from diffusionlens.pages.probe_remarks import probe_remarks


@dataclass(frozen=True)
class Measured:
    """A measurement and, when it was written, its page."""

    measurement: Measurement
    page: Path | None

    @property
    def findings(self) -> list[Finding]:
        """The sentences of the page."""
        models = self.measurement.manifest["models"]
        labels = [model["label"] for model in models]
        untrained = [model["label"] for model in models if model["untrained"]]
        return [*findings(self.measurement.results, labels, untrained), *probe_remarks(self.measurement.manifest)]


def measure(
    models: str | Backbone | Sequence[str | Backbone],
    data: str | PictureSource,
    out: Path | str | None = None,
    *,
    analyses: str = "standard",
    layers: str = "all",
    images: int | None = None,
    size: str | None = None,
    fit: Fit = "crop",
    batch_size: int | None = None,
    device: str = "auto",
    workers: int = 0,
    seed: int = 0,
    explore: int = 0,
    options: Sequence[str] = (),
    progress: Progress = silent,
) -> Measured | None:
    """Measures one or several models on pictures, and writes a result directory when `out` is given.

    Args:
        models: MODEL strings, or Backbones from `load_model`.
        data: a DATA string, or a picture source from `open_data`.
        out: directory to make.
        analyses: "standard" (pib, norms, sparsity, similarity, pca), "all", or names separated by commas; diffusion sends
            changed pictures through the model too and costs a multiple.
        layers: "all", "last", or numbers separated by commas; 0 is the embedding, -1 the last.
        images: at most so many pictures, evenly spaced over the data set.
        size: "224" or "224x320"; default 224, or the native size of a smaller model.
        explore: so many pictures, evenly spaced, in the page's token explorer; each adds some hundred kilobytes a model.
        options: settings of analyses, as "pib.hit=center".

    Returns:
        The measurement; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    try:
        with processes.together():
            place = check_target(out) if out is not None and processes.rank == 0 else None
            given = [models] if isinstance(models, str | Backbone) else list(models)
            settings = settings_of(
                analyses, layers, images, size, fit, batch_size, device, workers, seed, options, explore
            )
            opening = prepare_models(given)
            source = open_data(data, "--data") if isinstance(data, str) else data
            backbones = [open_model() for open_model in opening]
        measurement = measure_backbones(backbones, source, settings, progress, processes)
        with processes.together():
            if measurement is None:
                return None
            measurement.manifest["command"] = command_line()
            return Measured(measurement, None if place is None else write_bundle(measurement, place))
    finally:
        processes.leave()
