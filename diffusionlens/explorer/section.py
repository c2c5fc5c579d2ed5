"""The explorer as a part of a page: one HTML fragment, one style and one script, for any page that wants it.

The fragment holds everything (pictures, packed maps, controls); a browser unpacks what it shows. Names are escaped.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from diffusionlens.explorer.packed import ExploredModel, PackedLayer, PackedPicture


@dataclass(frozen=True)
class Section:
    """`html` stands in the page's body under the id "explorer", `style` in a style element, `script` in a script element after
    it."""

    html: Markup
    style: Markup
    script: Markup


def explorer_section(models: Sequence[ExploredModel], heading: str = "Token explorer") -> Section | None:
    """The explorer of these models on the pictures that all of them have; None where there is none.

    It fits one page only once: ids begin with "explorer". Colours are taken from the page's custom properties --ink, --soft,
    --line, --paper, --wash and --accent.
    """
    shown = [model for model in models if model.layers]
    places = sorted(set.intersection(*(set(model.pictures) for model in shown))) if shown else []
    if not places:
        return None
    room = files("diffusionlens.explorer")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(room.joinpath("section.html.jinja").read_text(encoding="utf-8"))
    images: dict[bytes, int] = {}
    facts = {
        "models": [_facts(model, places, images) for model in shown],
        "pictures": [shown[0].pictures[place].name for place in places],
        "images": [base64.b64encode(image).decode() for image in images],
    }
    html = template.render(
        heading=heading,
        models=shown,
        pictures=facts["pictures"],
        facts=Markup(json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")),
        chunks=[[_chunk(model, model.pictures[place]) for place in places] for model in shown],
        lead=max(range(len(shown)), key=lambda place: len(shown[place].layers)),
        registers=any(model.registers for model in shown),
        attention=any(model.attention for model in shown),
        cls=any(model.has_cls for model in shown),
        errors=_errors(shown),
        tokens=_tokens(shown),
    )
    script = "".join(room.joinpath(name).read_text(encoding="utf-8") for name in ("unpack.js", "view.js"))
    return Section(Markup(html), Markup(room.joinpath("section.css").read_text(encoding="utf-8")), Markup(script))


def _facts(model: ExploredModel, places: Sequence[int], images: dict[bytes, int]) -> dict[str, Any]:
    """What the script must know of a model. `maps` has for every picture and layer: levels and bytes of the cosines, and of
    the attention (0, 0 where there is none), in the order of the chunk."""
    pictures = [model.pictures[place] for place in places]
    return {
        "label": model.label,
        "grid": model.grid,
        "size": model.size,
        "depth": model.depth,
        "cls": model.has_cls,
        "registers": model.registers > 0,
        "layers": model.layers,
        "images": [images.setdefault(picture.image, len(images)) for picture in pictures],
        "maps": [[_lengths(picture.layers[layer]) for layer in model.layers] for picture in pictures],
    }


def _lengths(layer: PackedLayer) -> list[int]:
    attention = layer.attention
    lengths = [layer.cosines.levels, len(layer.cosines.data)]
    return lengths + ([0, 0] if attention is None else [attention.levels, len(attention.data)])


def _chunk(model: ExploredModel, picture: PackedPicture) -> str:
    maps = []
    for number in model.layers:
        layer = picture.layers[number]
        maps += [layer.cosines.data, b"" if layer.attention is None else layer.attention.data]
    return base64.b64encode(b"".join(maps)).decode()


def _errors(models: Sequence[ExploredModel]) -> dict[str, str]:
    """The largest error of any entry, rounded up: what is stated holds."""
    summaries = [model.summary() for model in models]
    return {kind: _up(max(summary[f"{kind}_error"] for summary in summaries)) for kind in ("cosine", "attention")}


def _up(error: float) -> str:
    thousandths = int(error * 1000 - 1e-9) + 1
    return f"{thousandths / 1000:.3f}" if error > 0 else "0"


def _tokens(models: Sequence[ExploredModel]) -> str:
    kinds = sorted({model.tokens for model in models})
    return " and ".join({"normed": "normed (through the final norm)", "raw": "raw"}[kind] for kind in kinds)
