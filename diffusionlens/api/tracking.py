"""`track`: the checkpoints of training runs to curves over training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.processes import Processes
from diffusionlens.analysis.track import Track, find_moments, set_aside
from diffusionlens.analysis.track import track as track_moments
from diffusionlens.api.requests import settings_of, silent
from diffusionlens.data import PictureSource, open_data
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.invocation import command_line
from diffusionlens.options import CHECKPOINTS, TRACKED
from diffusionlens.pages.directory import check_target
from diffusionlens.pages.findings import Finding
from diffusionlens.pages.track import track_findings, write_track


@dataclass(frozen=True)
class Tracked:
    """A track over checkpoints, and its page."""

    track: Track
    page: Path

    @property
    def findings(self) -> list[Finding]:
        """The sentences of the page."""
        runs = list(dict.fromkeys(moment.run for moment in self.track.moments))
        return track_findings(self.track.results(), runs)


def track(
    runs: str | Sequence[str],
    data: str | PictureSource,
    out: Path | str,
    *,
    checkpoints: int | None = None,
    analyses: str = TRACKED,
    layers: str = "all",
    images: int | None = None,
    size: str | None = None,
    fit: Fit = "crop",
    batch_size: int | None = None,
    device: str = "auto",
    workers: int = 0,
    seed: int = 0,
    options: Sequence[str] = (),
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda _: None,
) -> Tracked | None:
    """Measures the checkpoints of training runs, and writes curves over training as a result directory.

    A checkpoint that can't be opened is left out, and named on the page, in the manifest, and to `warn` before the first is
    measured.

    Args:
        runs: run directories of `train`, as `[label=]RUN`.
        checkpoints: at most so many of each run, evenly spaced.
        analyses, layers, ...: as of `measure`.

    Returns:
        The track; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    try:
        with processes.together():
            place = check_target(out) if processes.rank == 0 else None
            if checkpoints is not None:
                CHECKPOINTS.check(checkpoints)
            found = find_moments([runs] if isinstance(runs, str) else list(runs), checkpoints)
            settings = settings_of(
                analyses, layers, images, size, fit, batch_size, device, workers, seed, options=options
            )
            source = open_data(data, "--data") if isinstance(data, str) else data
            moments, broken = set_aside(found, settings.layers)
            if processes.rank == 0:
                for entry in broken:
                    warn(f"warning: {entry['model']} is left out: {entry['reason']}")
        tracked = track_moments(moments, source, settings, progress, processes, broken)
        with processes.together():
            if tracked is None or place is None:
                return None
            tracked.measurement.manifest["command"] = command_line()
            return Tracked(tracked, write_track(tracked, place))
    finally:
        processes.leave()
