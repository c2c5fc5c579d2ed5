"""The work of a plan: sections that can share a forward pass or a training of heads become one job."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffusionlens.analysis.probes.heads.kinds import parse_kinds
from diffusionlens.analysis.registry import analyses, parse_analyses, parse_options
from diffusionlens.data.transforms.fit import Fit
from diffusionlens.errors import InputError
from diffusionlens.plans.needs import Pair, available, limited
from diffusionlens.plans.plan_files import settings_of_options
from diffusionlens.plans.schema import ExplorerSection, MeasureSection, Plan, ProbeSection, TableSection, TrackSection

EXPLORER = "explorer"
"""Stands among the analyses of a job, as in the settings of `measure`."""


@dataclass(frozen=True)
class Job:
    """One pass over the pictures, one probe, or one track; `sections` show what it finds. `what`: analyses, or the task;
    `options`: settings as of `--set`."""

    kind: str
    sections: tuple[str, ...]
    pair: Pair
    what: tuple[str, ...]
    options: tuple[str, ...] = ()
    layers: str = "all"
    images: int | None = None
    size: str | None = None
    fit: Fit = "crop"
    preset: str = "fast"
    tokens: str = "all"
    seeds: int = 3
    checkpoints: int | None = None

    @property
    def name(self) -> str:
        """What progress is shown under."""
        return f"{' + '.join(self.sections)} ({self.pair.label})"

    def request(self) -> dict[str, Any]:
        """All that is asked for, as plain values: the part of a key that the plan decides."""
        return {**vars(self), "pair": vars(self.pair)}


def jobs_of(plan: Plan, data: Mapping[str, Sequence[Pair]], images: int | None, size: str | None) -> list[Job]:
    """The jobs of a plan in the order of its sections. `images` caps those of all sections, `size` takes the place of theirs.

    Raises:
        InputError: two sections ask the same of the same data in two ways, which rows of one table could not tell apart.
    """
    jobs: list[Job] = []
    for name, section in plan.sections.items():
        if isinstance(section, TableSection):
            continue
        own = [count for count in (section.images or plan.images, images) if count is not None]
        pixels = size or section.size or plan.size
        for pair in data[section.data]:
            count = min(own, default=None)
            if count is not None and count >= available(pair.test) and section.kind != "probe":
                count = None  # all of them, as another section may ask for
            if isinstance(section, ProbeSection):
                options = tuple(sorted(settings_of_options(section.options)))
                made = Job(
                    "probe", (name,), limited(pair, count), (section.task,), options, section.layers, None, pixels,
                    "crop", section.preset, section.tokens, section.seeds,
                )  # fmt: skip
            else:
                made = _watching(name, section, replace(pair, train=None), count, pixels)
            _add(jobs, made)
    return jobs


def _watching(
    name: str,
    section: MeasureSection | TrackSection | ExplorerSection,
    pair: Pair,
    images: int | None,
    size: str | None,
) -> Job:
    if isinstance(section, ExplorerSection):
        chosen = (f"explorer.attention={json.dumps(section.attention)}", f"explorer.pictures={section.pictures}")
        return Job("measure", (name,), pair, (EXPLORER,), chosen, section.layers, images, size, section.fit)
    what = tuple(parse_analyses(",".join(section.analyses)))
    options = tuple(sorted(settings_of_options(section.options)))
    parse_options(options)
    steps = section.checkpoints if isinstance(section, TrackSection) else None
    return Job(section.kind, (name,), pair, what, options, section.layers, images, size, section.fit, checkpoints=steps)


def _add(jobs: list[Job], made: Job) -> None:
    """Joins `made` with a job that it can share with, or appends it."""
    for place, job in enumerate(jobs):
        if job.kind != made.kind or job.pair.label != made.pair.label:
            continue
        common = set(job.what) & set(made.what)
        if _shareable(job, made):
            jobs[place] = _joined(job, made)
            return
        if common:
            raise InputError(
                f"the sections {', '.join(job.sections)} and {', '.join(made.sections)} ask for {', '.join(sorted(common))} on "
                f"{job.pair.label} in two ways, which one table could not tell apart; make two plans of them"
            )
    jobs.append(made)


def _shareable(one: Job, other: Job) -> bool:
    alike = ("pair", "images", "size", "fit", "preset", "seeds", "checkpoints")
    if any(getattr(one, name) != getattr(other, name) for name in alike):
        return False
    if one.kind == "probe":
        return one.what == other.what and one.options == other.options
    if one.kind == "track" and one.layers != other.layers:
        return False
    chosen, theirs = parse_options(one.options), parse_options(other.options)
    return all(chosen[name] == theirs[name] for name in set(one.what) & set(other.what))


def _joined(one: Job, other: Job) -> Job:
    names = dict.fromkeys(one.what + other.what)
    what = tuple(names) if one.kind == "probe" else tuple(name for name in [*analyses(), EXPLORER] if name in names)
    kinds = {*parse_kinds(one.tokens), *parse_kinds(other.tokens)}
    return replace(
        one,
        sections=one.sections + other.sections,
        what=what,
        options=tuple(sorted({*one.options, *other.options})),
        layers=_layers(one.layers, other.layers),
        tokens=",".join(parse_kinds(",".join(kinds))),
    )


def _layers(one: str, other: str) -> str:
    if "all" in (one, other):
        return "all"
    return one if one == other else ",".join(part.replace("last", "-1") for part in (one, other))
