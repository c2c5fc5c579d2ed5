"""Which figures a page shows, in which order, and how each is to be read."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image, features

from diffusionlens.figures.discovery_boxes import discovered
from diffusionlens.figures.intervention_maps import interventions, provenance
from diffusionlens.figures.layer_curves import (
    DIFFUSION_PANELS,
    SIMILARITY_PANELS,
    SPARSITY_PANELS,
    pib_by_layer,
    small_multiples,
)
from diffusionlens.figures.norm_histograms import norm_ridges
from diffusionlens.figures.picture_maps import pca_pictures, pib_overlay
from diffusionlens.figures.sparsity_heatmap import support_by_head
from diffusionlens.figures.spread_heatmap import spread_by_ring
from diffusionlens.figures.style import DPI, freeze_layout, look, save_figure
from diffusionlens.material import ModelMaterial
from diffusionlens.report.descriptions import basis_of, gist_of

Draw = Callable[[pd.DataFrame, Sequence[str], Sequence[ModelMaterial]], Figure | None]


@dataclass(frozen=True)
class PageFigure:
    """A figure ready for the page: pictures for light and dark as data URIs, and its size in CSS pixels.

    `caption` says how to read it, `basis` what it counts, `gist` its numbers for those who can't see it.
    """

    stem: str
    title: str
    caption: str
    basis: str
    gist: str
    light: str
    dark: str
    width: int
    height: int


_FIGURES: tuple[tuple[str, str, str, Draw], ...] = (
    (
        "pib_by_layer",
        "Do patches still know where the object is?",
        "Share of pictures in which the patch most similar to the query lies on the object, by layer; bands are 95 % Wilson "
        "intervals. A curve that falls towards the last layer is the mark of semantic diffusion. Below the chance line, "
        "the image token looks like the background. Dotted: chance; dash-dotted: always pointing at the centre patch.",
        lambda results, models, _: pib_by_layer(results, models),
    ),
    (
        "pib_overlay",
        "Where the image token finds itself",
        "Cosine of every patch with the query over sample pictures; each map has its own scale, so colours compare patches of "
        "one map, not maps. White frames are the annotated boxes, the ring is the best patch. Pictures with several frames are "
        "shown, but count in PiB only where it was asked for.",
        lambda _, __, material: pib_overlay(material),
    ),
    (
        "pca_maps",
        "What patches have in common",
        "The first three principal components of the patch tokens as colours, fitted jointly over these pictures for each "
        "model and layer. From the second model on, components 2 and 3 are turned towards the first model's, for display "
        "only. Objects with a colour of their own are told apart; colour noise in even regions is not local evidence.",
        lambda _, __, material: pca_pictures(material),
    ),
    (
        "similarity_by_layer",
        "How alike tokens are",
        "Means over pictures with 95 % bootstrap intervals; the effective rank is one number of all pictures. CLS-to-patch "
        "cosine that rises late, with near-minus-far or inside-minus-across differences that fall, is what one expects of "
        "patches that carry more of the image and less of their place; it does not prove it.",
        lambda results, models, _: small_multiples(results, models, SIMILARITY_PANELS),
    ),
    (
        "norms",
        "Are there outlier tokens?",
        "Histograms of patch norms by layer, each scaled to its own peak. The grey tick is the robust threshold (median + 6 "
        "robust standard deviations); a triangle marks the valley before a second mode, where there is one; a dotted line "
        "the fixed threshold, where norms come near it.",
        lambda _, __, material: norm_ridges(material),
    ),
    (
        "sparsity_by_layer",
        "How many tokens a token attends to",
        "Means over queries, heads and pictures with 95 % bootstrap intervals, from every row of every attention map.",
        lambda results, models, _: small_multiples(results, models, SPARSITY_PANELS),
    ),
    (
        "sparsity_by_head",
        "Broad and narrow heads",
        "Effective support, exp(entropy), of patch queries for every layer and head, on one colour scale.",
        lambda results, models, _: support_by_head(results, models),
    ),
    (
        "diffusion_by_layer",
        "Does the object's meaning leave its place?",
        "Leakage: how much better a linear probe reads the picture's label from background patches when the object is there "
        "than when it is erased. Spread: how much background patches change when the object is exchanged for another "
        "picture's, as a share of what exchanging the whole picture does. Bands are 95 % intervals over pictures. No pixel of "
        "a background patch is changed by either; the box's place and form stay visible, so that leakage is conservative.",
        lambda results, models, _: small_multiples(results, models, DIFFUSION_PANELS),
    ),
    (
        "spread_by_ring",
        "How far an exchanged object is felt",
        "Spread by layer and by distance in patches from those that the object's box touches, on one colour scale. In layer 0 "
        "nothing can have spread.",
        lambda results, models, _: spread_by_ring(results, models),
    ),
    (
        "interventions",
        "What was done to the pictures",
        "Sample pictures; the same with every box filled; with the main object exchanged for another picture's; and the "
        "background patches that are probed (shaded): those more than a patch away from every box.",
        lambda _, __, material: interventions(material),
    ),
    (
        "provenance",
        "From where a patch has its likeness to CLS",
        "Size of the attribution of cos(patch, CLS) to the pixels, for one patch (cyan) of the background and one of the object; "
        "each map has its own scale, up to its 99th percentile.",
        lambda _, __, material: provenance(material),
    ),
    (
        "discovered",
        "Objects found without labels",
        "Annotated boxes in white, LOST's one box in orange, TokenCut's in cyan, both from the last layer. Where a model's "
        "keys are all alike, the box is the whole picture.",
        lambda _, __, material: discovered(material),
    ),
)


def draw_figures(
    results: pd.DataFrame, models: Sequence[str], material: Sequence[ModelMaterial], directory: Path
) -> list[PageFigure]:
    """Draws every figure that the numbers allow, saves it as PNG and PDF, and returns it for the page."""
    drawn = []
    for stem, title, caption, draw in _FIGURES:
        figure = draw_figure(
            stem,
            title,
            caption,
            lambda draw=draw: draw(results, models, material),  # type: ignore[misc]
            lambda stem=stem: (basis_of(stem, results, material), gist_of(stem, results, models, material)),  # type: ignore[misc]
            directory,
        )
        if figure is not None:
            drawn.append(figure)
    return drawn


def draw_figure(
    stem: str,
    title: str,
    caption: str,
    draw: Callable[[], Figure | None],
    describe: Callable[[], tuple[str, str]],
    directory: Path,
) -> PageFigure | None:
    """Draws a figure in light and dark, saves the light one as STEM.png and STEM.pdf; None where `draw` gives none.

    Args:
        draw: makes the figure anew in the look that is set.
        describe: gives what it counts, and its numbers in words; not asked where there is no figure.
    """
    with look():
        figure = draw()
        if figure is None:
            return None
        freeze_layout(figure)
        save_figure(figure, directory, stem)
        light = (directory / f"{stem}.png").read_bytes()
        width, height = (round(side * 96) for side in figure.get_size_inches())
    with look(dark=True):
        night = draw()
        assert night is not None
        freeze_layout(night, like=figure)
        dark = io.BytesIO()
        night.savefig(dark, dpi=DPI, format="png", metadata={"Software": None})
    basis, gist = describe()
    day, night_time = (_uri(png, small=stem in _PHOTOGRAPHIC) for png in (light, dark.getvalue()))
    return PageFigure(stem, title, caption, basis, gist, day, night_time, width, height)


_PHOTOGRAPHIC = ("pib_overlay", "pca_maps", "interventions", "provenance", "discovered")


def _uri(png: bytes, *, small: bool) -> str:
    """The picture as a data URI; photographs as WebP, a tenth of their PNG, so that the page stays light."""
    if small and features.check("webp"):
        packed = io.BytesIO()
        with Image.open(io.BytesIO(png)) as image:
            image.convert("RGB").save(packed, format="WEBP", quality=88, method=4)
        return "data:image/webp;base64," + base64.b64encode(packed.getvalue()).decode()
    return "data:image/png;base64," + base64.b64encode(png).decode()
