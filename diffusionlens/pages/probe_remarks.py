"""What the manifest of a probe lets one say beside the numbers: pictures seen in training, and learning rates at the edge."""

from typing import Any

from diffusionlens.pages.findings import Finding
from diffusionlens.pages.numbers import short


def probe_remarks(manifest: dict[str, Any]) -> list[Finding]:
    """Warnings first."""
    return [*_seen_before(manifest), *_at_the_edge(manifest)]


def _seen_before(manifest: dict[str, Any]) -> list[Finding]:
    both = manifest.get("pictures_in_both", 0)
    if not both:
        return []
    test = manifest["data"][0]
    text = (
        f"{both} of the {test['pictures']} pictures of {test['label']} are also among those that the heads learn from: their "
        f"scores say what the heads remember, and not what they know of new pictures."
    )
    return [Finding(text, warning=True)]


def _at_the_edge(manifest: dict[str, Any]) -> list[Finding]:
    """Where most heads chose the highest or the lowest of their learning rates."""
    found = []
    for model in manifest["models"]:
        for edge, name in (("highest", "higher"), ("lowest", "lower")):
            count = model.get("probe", {}).get("rates_chosen", {})
            if count and 2 * count[edge] > count["heads"]:
                text = (
                    f"{count[edge]} of {count['heads']} heads chose the {edge} of their learning rates "
                    f"({short(count[f'{edge}_rate'])}): {name} ones may do better (--set rates)."
                )
                found.append(Finding(text, model["label"]))
    return found
