"""Which figures a page shows, in which order, and how each is to be read."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image, features

from diffusionlens.figures.diffusion_maps import (
    LEAKAGE_PANELS,
    discovered,
    interventions,
    provenance_maps,
    spread_by_distance,
)
from diffusionlens.figures.layer_curves import SIMILARITY_PANELS, SPARSITY_PANELS, pib_by_layer, small_multiples
from diffusionlens.figures.norm_histograms import norm_ridges
from diffusionlens.figures.picture_maps import pca_pictures, pib_overlay
from diffusionlens.figures.probe_curves import gain_bars, probe_by_layer
from diffusionlens.figures.probe_pictures import depth_pictures, segmentation_pictures
from diffusionlens.figures.sparsity_heatmap import support_by_head
from diffusionlens.figures.style import DPI, freeze_layout, look, save_figure
from diffusionlens.material import ModelMaterial
from diffusionlens.pages.descriptions import added_panels, basis_of, gist_of

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
        "probe_by_layer",
        "What linear heads read from frozen tokens",
        "Score on the test pictures of heads trained on the tokens of each layer; bands are 95 % bootstrap intervals over test "
        "pictures. Controls, where asked for, are shuffled_cls+patch (another picture's CLS beside the patches) and "
        "mean+patch (their own mean).",
        lambda results, models, _: probe_by_layer(results, models),
    ),
    (
        "gain_bars",
        "Does CLS add what patches lack?",
        "Score with a vector beside the patches minus score of the patches alone (for errors the other way round), in the last "
        "layer: positive is better. Bars are 95 % intervals over trainings with other seeds, not over pictures. A gain of CLS "
        "means something only where the controls show none.",
        lambda results, models, _: gain_bars(results, models),
    ),
    (
        "segmentation_pictures",
        "What the heads make of pictures",
        "Evenly spaced test pictures, not chosen by how they look, with their labels and what heads on the last layer say from "
        "the patches alone and with CLS beside them (first seed). One palette for all; ignored pixels are hatched in the labels, "
        "and predicted like any other, though nothing counts there.",
        lambda _, __, material: segmentation_pictures(material),
    ),
    (
        "depth_pictures",
        "What the heads make of distances",
        "Evenly spaced test pictures, not chosen by how they look, with the measured depth and what heads on the last layer say "
        "from the patches alone and with CLS beside them (first seed). All maps share one colour scale, which ends at the "
        "95th percentile of the measured depths shown; hatched: no reading.",
        lambda _, __, material: depth_pictures(material),
    ),
    (
        "pib_by_layer",
        "Do patches still know where the object is?",
        "Share of pictures in which the patch most similar to the query lies on the object, by layer; bands are 95 % Wilson "
        "intervals. A curve that falls towards the last layer is the mark of semantic diffusion. Below the chance line, "
        "the image token looks like the background. In layer 0 CLS has seen nothing: it is the same for every picture. Dotted: "
        "chance; dash-dotted: always pointing at the centre patch.",
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
        "leakage_by_layer",
        "What the background knows of the object",
        "A linear probe reads the picture's label from its mean background patch, cross-validated, with the object in place and "
        "with its box filled from around it. The difference, leakage, is what the background tells only because the object is "
        "there. Spread is the response of the patches around the object to another one in its box, over their response to "
        "another picture. Untrained networks leak too: compare models, and layers. Bands are 95 % intervals over pictures.",
        lambda results, models, _: small_multiples(results, models, LEAKAGE_PANELS, columns=2),
    ),
    (
        "spread_by_distance",
        "How far the object is felt",
        "Spread by layer and by distance to the exchanged object: 1 is the ring of patches next to those that the box touches. "
        "0: nothing is felt; 1: as much as if the whole picture had been exchanged. A distance at which no picture has a "
        "patch is not drawn.",
        lambda results, models, _: spread_by_distance(results, models),
    ),
    (
        "interventions",
        "What was done to the pictures",
        "From left: the picture with its boxes; the background patches that are probed (the rest darkened); all boxes filled; "
        "the largest object exchanged for another picture's, in its box, over the filled box and with a soft edge.",
        lambda _, __, material: interventions(material),
    ),
    (
        "provenance_maps",
        "Where a patch has its likeness to the image from",
        "|Attribution| of cos(patch, CLS) to the pixels, summed over each patch's area and drawn as its square root; every "
        "map has its own scale. Blue frame: the patch; white frames: boxes. A background and an object patch of each picture.",
        lambda _, __, material: provenance_maps(material),
    ),
    (
        "discovered",
        "Objects found without labels",
        "Annotated boxes in white, LOST's box in orange, TokenCut's in blue, both from the last layer.",
        lambda _, __, material: discovered(material),
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
        "added_by_layer",
        "Analyses that were added",
        "Every metric of the analyses that are not diffusionlens' own, by layer; bands are 95 % intervals.",
        lambda results, models, _: small_multiples(results, models, added_panels(results)),
    ),
)


FIGURE_STEMS = tuple(stem for stem, *_ in _FIGURES)
"""The names of the figures, in the order of a page."""


def draw_figures(
    results: pd.DataFrame,
    models: Sequence[str],
    material: Sequence[ModelMaterial],
    directory: Path,
    stems: Sequence[str] = FIGURE_STEMS,
    prefix: str = "",
) -> list[PageFigure]:
    """Draws every figure of `stems` that the numbers allow, saves it as PNG and PDF under `prefix` and its name, and returns it
    for the page."""
    drawn = []
    known = {stem: (stem, title, caption, draw) for stem, title, caption, draw in _FIGURES}
    for stem, title, caption, draw in (known[stem] for stem in stems):
        figure = draw_figure(
            stem,
            title,
            caption,
            lambda draw=draw: draw(results, models, material),  # type: ignore[misc]
            lambda stem=stem: (basis_of(stem, results, material), gist_of(stem, results, models, material)),  # type: ignore[misc]
            directory,
            prefix,
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
    prefix: str = "",
) -> PageFigure | None:
    """Draws a figure in light and dark, saves the light one as PREFIX+STEM.png and .pdf; None where `draw` gives none.

    Args:
        draw: makes the figure anew in the look that is set.
        describe: gives what it counts, and its numbers in words; not asked where there is no figure.
    """
    with look():
        figure = draw()
        if figure is None:
            return None
        freeze_layout(figure)
        save_figure(figure, directory, prefix + stem)
        light = (directory / f"{prefix}{stem}.png").read_bytes()
        width, height = (round(side * 96) for side in figure.get_size_inches())
    with look(dark=True):
        night = draw()
        assert night is not None
        freeze_layout(night, like=figure)
        dark = io.BytesIO()
        night.savefig(dark, dpi=DPI, format="png", metadata={"Software": None})
    basis, gist = describe()
    day, night_time = (_uri(png, small=stem in _PHOTOGRAPHIC) for png in (light, dark.getvalue()))
    return PageFigure(prefix + stem, title, caption, basis, gist, day, night_time, width, height)


_PHOTOGRAPHIC = (
    "segmentation_pictures",
    "depth_pictures",
    "pib_overlay",
    "pca_maps",
    "interventions",
    "provenance_maps",
    "discovered",
)


def _uri(png: bytes, *, small: bool) -> str:
    """The picture as a data URI, so that the page stays light: photographs as WebP, a tenth of their PNG, and everything else
    as lossless WebP, half of it."""
    if features.check("webp"):
        packed = io.BytesIO()
        with Image.open(io.BytesIO(png)) as image:
            how = {"quality": 88, "method": 4} if small else {"lossless": True, "quality": 50, "method": 2}
            image.convert("RGB").save(packed, format="WEBP", **how)
        return "data:image/webp;base64," + base64.b64encode(packed.getvalue()).decode()
    return "data:image/png;base64," + base64.b64encode(png).decode()
