"""`compare`: result directories to a comparison and its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffusionlens.api.requests import check_numbers
from diffusionlens.comparison.paired import Comparison, compare_results
from diffusionlens.comparison.result_directory import read_result
from diffusionlens.errors import InputError
from diffusionlens.invocation import command_line
from diffusionlens.pages.comparison import write_comparison
from diffusionlens.pages.comparison_findings import comparison_findings
from diffusionlens.pages.directory import check_target
from diffusionlens.pages.findings import Finding


@dataclass(frozen=True)
class Compared:
    """A comparison and, when it was written, its page."""

    comparison: Comparison
    page: Path | None

    @property
    def findings(self) -> list[Finding]:
        """The sentences of the page."""
        return comparison_findings(self.comparison)


def compare(
    directories: str | Path | Sequence[str | Path],
    out: Path | str | None = None,
    *,
    baseline: str | None = None,
    models: Sequence[str] = (),
    seed: int = 0,
    allow_differences: bool = False,
) -> Compared:
    """Compares the models of result directories with a baseline, picture by picture.

    Args:
        directories: results of `measure`, `track` or `probe`, as `[label=]DIR`.
        out: directory to make.
        baseline: a model's name, which is `LABEL:MODEL` where two directories have it; default the first.
        models: only these, and the baseline; default all, of a tracked run its last checkpoint.
        seed: of the bootstrap.
        allow_differences: results that were not measured in the same way are compared all the same, with a warning.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    check_numbers(images=None, batch_size=None, workers=0, seed=seed)
    place = None if out is None else check_target(out)
    given = [directories] if isinstance(directories, str | Path) else list(directories)
    results = [read_result(str(directory)) for directory in given]
    for result in results:
        if place is not None and result.path.resolve() in (place, *place.parents):
            raise InputError(f"--out {out} is, or lies in, {result.path}, which is compared; choose another directory")
    comparison = compare_results(results, baseline, models, seed, allow_differences=allow_differences)
    if out is None:
        return Compared(comparison, None)
    return Compared(comparison, write_comparison(comparison, out, command_line()))
