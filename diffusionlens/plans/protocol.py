"""How the numbers of a section were made, in a sentence or two, from the manifest of its job."""

from typing import Any

from diffusionlens.analysis.run import Measurement
from diffusionlens.plans.schema import MeasureSection, ProbeSection, TrackSection

_FITS = {"crop": "centre crop", "squash": "squashed", "pad": "padded"}


def protocol_of(own: Measurement, section: MeasureSection | ProbeSection | TrackSection) -> str:
    """Counts, data, size, options and what heads were trained with."""
    manifest = own.manifest
    data = manifest["data"][0]
    sizes = sorted({" × ".join(map(str, model["size"])) for model in manifest["models"]})
    text = f"{data['measured']} pictures of {data['label']} at {' and '.join(sizes)} pixels"
    if isinstance(section, ProbeSection):
        recipe = manifest["analyses"][section.task]
        train = manifest["data"][1]
        return (
            f"{text}; linear heads on frozen tokens, trained on {train['measured']} pictures of {train['label']}: preset "
            f"{recipe['preset']}, {recipe['iterations']} steps, {manifest['settings']['seeds']} seeds."
        )
    fit = _FITS.get(manifest["settings"]["fit"], manifest["settings"]["fit"])
    options = [
        f"{name}: {_options(manifest['analyses'][name])}" for name in section.analyses if name in manifest["analyses"]
    ]
    shown = "; ".join(one for one in options if not one.endswith(": "))
    return f"{text} ({fit})." + (f" Options: {shown}." if shown else "")


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in options.items() if value is not None)
