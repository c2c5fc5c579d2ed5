"""A finished plan as one result directory: page, tidy table, per-picture values, figures, tables, manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from diffusionlens.analysis.outcome import versions
from diffusionlens.analysis.run import Measurement
from diffusionlens.pages.bundle import write_measured
from diffusionlens.pages.directory import whole_directory
from diffusionlens.pages.findings import Finding
from diffusionlens.pages.page import facts_of_data, facts_of_model, unmeasured
from diffusionlens.pages.template import Facts, Page, render
from diffusionlens.per_image import PerImage
from diffusionlens.plans.content import Content, Finished, content_of
from diffusionlens.results import COLUMNS

_FINDINGS_NOTE = (
    "Ranges in brackets are 95 % intervals. Differences to the baseline are over the pictures that both have, each with itself "
    "(paired bootstrap): they say what another choice of pictures would do, and nothing of another training of the same recipe. "
    "Of twenty differences that are none, one is expected to keep clear of zero by chance. Where fewer than six pictures differ, "
    "nothing is claimed."
)


def write_report(
    finished: Finished, out: Path | str, request: Mapping[str, Any], room: Path | None = None
) -> tuple[Path, list[Finding]]:
    """Writes everything into `out`, by way of the folder `room` beside it, and returns the page's path and the sentences that it
    begins with.

    Raises:
        InputError: as `whole_directory`.
    """
    manifest = _manifest(finished, request)
    with whole_directory(out, room) as directory:
        (directory / "figures").mkdir()
        (directory / "tables").mkdir()
        content = content_of(finished, directory)
        _write_captions(content, directory)
        results = pd.concat([own.results for own in finished.done], ignore_index=True)[COLUMNS]
        pictures = PerImage.joined([own.pictures for own in finished.done])
        joined = Measurement(results, pictures, [], manifest)
        write_measured(joined, render(_page(finished, content, manifest)), directory)
    return Path(out).expanduser().resolve() / "index.html", _unique([*content.first, *content.against])


def _write_captions(content: Content, directory: Path) -> None:
    """Captions as plain text beside what they belong to: for a paper."""
    for name in ("figures", "tables"):
        lines = [f"{key.partition('/')[2]}: {text}" for key, text in content.captions.items() if key.startswith(name)]
        (directory / name / "captions.txt").write_text(
            "\n\n".join([*lines, ""]), encoding="utf-8", errors="backslashreplace"
        )


def _page(finished: Finished, content: Content, manifest: dict[str, Any]) -> Page:
    plan, models = finished.plan, finished.models
    first = _unique(content.first)
    groups = [
        (f"{name} against {models[0]}, picture by picture", [found for found in content.against if found.model == name])
        for name in models[1:]
    ]
    named = dict.fromkeys([*models, *(found.model for found in first if found.model is not None)])
    groups += [(name, [found for found in first if found.model == name and not found.warning]) for name in named]
    counts = {data["label"]: data["measured"] for data in manifest["data"] if data.get("role") != "train"}
    on = ", ".join(f"{count} pictures of {label}" for label, count in counts.items())
    about = plan.about + (f" The baseline is {models[0]}." if len(models) > 1 else "")
    return Page(
        title=plan.title,
        lead=f"{' · '.join(models)}, on {on}. {' '.join(about.split())}".strip(),
        warnings=[found for found in first if found.warning],
        groups=groups,
        figures=(),
        tables=(),
        layer_tables=(),
        sections=content.parts,
        left_out=[entry for entry in manifest["left_out"] if entry["model"] not in _earlier(manifest)],
        skipped=[entry for data in manifest["data"] for entry in data["skipped"]],
        notes=[entry for data in manifest["data"] for entry in data["notes"]],
        unmeasured=list(dict.fromkeys(line for own in finished.done for line in unmeasured(own.manifest))),
        made=[
            *map(_facts_of_model, _shown_models(manifest)),
            *map(facts_of_data, manifest["data"]),
            _facts_of_run(manifest),
        ],
        versions=manifest["versions"],
        findings_note=_FINDINGS_NOTE,
        explorer=content.explorer,
    )


def _unique(found: Sequence[Finding]) -> list[Finding]:
    """Each sentence once: several sections may warn of the same."""
    return list({(one.model, one.text): one for one in found}.values())


def _earlier(manifest: dict[str, Any]) -> set[str]:
    """Checkpoints of a run before its last: what they are is told once a run."""
    last = {entry["run"]: entry["model"] for entry in manifest["checkpoints"]}
    return {entry["model"] for entry in manifest["checkpoints"]} - set(last.values())


def _shown_models(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in manifest["models"] if entry["label"] not in _earlier(manifest)]


def _facts_of_model(model: dict[str, Any]) -> Facts:
    """As of `measure`, but for the seconds that packing the explorer took: a page that was interrupted would have others."""
    return facts_of_model({key: value for key, value in model.items() if key != "explorer"})


def _facts_of_run(manifest: dict[str, Any]) -> Facts:
    items = [("plan", manifest["plan"]["name"])]
    items += [(f"section {entry['sections']}", _job_text(entry)) for entry in manifest["jobs"]]
    items += [("settings", ", ".join(f"{key}={value}" for key, value in manifest["settings"].items()))]
    items += [("device", manifest["device"])]
    items += [("command", manifest["command"])] if manifest["command"] else []
    items.append(("versions", ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())))
    return Facts("Run", items)


def _job_text(entry: dict[str, Any]) -> str:
    asked = [f"{key}={value}" for key, value in entry["asked"].items() if value not in (None, "", [])]
    return f"{entry['kind']} on {entry['data']}: {', '.join(asked)}"


def _manifest(finished: Finished, request: Mapping[str, Any]) -> dict[str, Any]:
    plan, manifests = finished.plan, [own.manifest for own in finished.done]
    models = {entry["label"]: entry for manifest in reversed(manifests) for entry in manifest["models"]}
    named = [models[label] for label in finished.models if label in models]
    tracked = [entry for label, entry in models.items() if label not in finished.models]
    data = {(entry["spec"], entry.get("role", "")): entry for manifest in manifests for entry in manifest["data"]}
    left = {
        (entry["model"], entry["what"], entry["reason"]): entry
        for manifest in manifests
        for entry in manifest["left_out"]
    }
    return {
        "plan": {"name": request["plan"], **plan.model_dump(mode="json")},
        "models": named + tracked,
        "data": list(data.values()),
        "analyses": {name: options for manifest in manifests for name, options in manifest["analyses"].items()},
        "jobs": [
            {
                "sections": ", ".join(job.sections),
                "kind": job.kind,
                "data": job.pair.label,
                "asked": {
                    "test": job.pair.test,
                    "train": job.pair.train,
                    "what": ", ".join(job.what),
                    "options": list(job.options),
                    "layers": job.layers,
                    "images": job.images,
                    "size": job.size,
                },
                "wall_seconds": manifest["wall_seconds"],
            }
            for job, manifest in zip(finished.jobs, manifests, strict=True)
        ],
        "checkpoints": [entry for manifest in manifests for entry in manifest.get("checkpoints", [])],
        "left_out": list(left.values()),
        "classes_absent": sorted({name for manifest in manifests for name in manifest.get("classes_absent", [])}),
        "settings": dict(request["settings"]),
        "versions": versions(),
        "device": ", ".join(sorted({str(manifest["device"]) for manifest in manifests})),
        "processes": 1,
        "command": request["command"],
        "wall_seconds": round(sum(manifest["wall_seconds"] for manifest in manifests), 2),
    }
