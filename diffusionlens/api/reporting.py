"""`report`: a plan, models and data to one result directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffusionlens.analysis.device import resolve_device
from diffusionlens.analysis.measure import Progress
from diffusionlens.analysis.processes import Processes
from diffusionlens.api.requests import check_numbers, silent
from diffusionlens.invocation import command_line
from diffusionlens.models import prepare_models
from diffusionlens.pages.directory import check_target
from diffusionlens.pages.findings import Finding
from diffusionlens.plans.content import Finished
from diffusionlens.plans.jobs import jobs_of
from diffusionlens.plans.needs import assign, layers_of, without
from diffusionlens.plans.plan_files import read_plan
from diffusionlens.plans.run import Hardware, Workshop, check_models, run_jobs
from diffusionlens.plans.write import write_report
from diffusionlens.spec import parse_size


@dataclass(frozen=True)
class Reported:
    """A report's page, the sentences that it begins with, and the seconds that each of its jobs took."""

    page: Path
    models: list[str]
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def report(
    plan: str | Path,
    models: str | Sequence[str],
    data: str | Sequence[str],
    out: Path | str,
    *,
    train: str | Sequence[str] = (),
    without_parts: Sequence[str] = (),
    settings: Sequence[str] = (),
    images: int | None = None,
    size: str | None = None,
    seed: int = 0,
    resume: bool = True,
    device: str = "auto",
    batch_size: int | None = None,
    workers: int = 0,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> Reported | None:
    """Makes the report that a plan describes (docs/reports.md).

    Everything that the plan needs is looked for first. Finished sections are kept in a folder beside `out` until the report is
    whole, so that the same request goes on where it was interrupted.

    Args:
        plan: a YAML file, or the name of a shipped plan.
        models: MODEL strings; the first is the baseline.
        data: DATA strings, `[ROLE=]DATA` or `[ROLE.LABEL=]DATA`; without a role they go wherever they fit.
        out: directory to make.
        train: what heads learn from, in the same form.
        without_parts: roles and sections of the plan to leave out.
        settings: "images=100", or "pib.images=100" for a key of the section `pib`.
        images: at most so many pictures of every data set, evenly spaced. size: in place of the plan's.
        resume: go on with what an interrupted run has left; False begins anew.
        say: is told in one line what had been done before an interruption.

    Returns:
        What was made; None in the processes of torchrun other than the first.

    Raises:
        InputError: one line that says what came, what was wanted and what to do.
    """
    processes = Processes.join()
    shop: Workshop | None = None
    try:
        with processes.together():
            check_numbers(images=images, batch_size=batch_size, workers=workers, seed=seed)
            if size is not None:
                parse_size(size)
            target = check_target(out) if processes.rank == 0 else None
        place: Path = processes.share(target)
        with processes.together():
            resolve_device(device, processes)
            prepare_models(
                [models] if isinstance(models, str) else list(models)
            )  # what is wrong with one is told first
            chosen = without(read_plan(plan, settings), without_parts)
            pairs = assign(chosen, *([texts] if isinstance(texts, str) else list(texts) for texts in (data, train)))
            jobs = jobs_of(chosen, pairs, images, size)
            known = check_models([models] if isinstance(models, str) else list(models), jobs, layers_of(chosen))
            shop = Workshop(place.with_name(f".{place.name}.parts"), known, seed, Hardware(device, batch_size, workers))
            if processes.rank == 0:
                shop.open(resume=resume)
        done = run_jobs(jobs, shop, progress, say, processes)
        with processes.together():
            if processes.rank != 0:
                return None
            request = {
                "plan": str(plan),
                "settings": {
                    "set": list(settings),
                    "images": images,
                    "size": size,
                    "seed": seed,
                    "without": list(without_parts),
                },
                "command": command_line(),
            }
            page, found = write_report(Finished(chosen, known.labels, jobs, done, seed), place, request, shop.place)
            shop.close()
    finally:
        if shop is not None:
            shop.leave()
        processes.leave()
    seconds = {job.name: float(own.manifest["wall_seconds"]) for job, own in zip(jobs, done, strict=True)}
    return Reported(page, known.labels, found, seconds)
