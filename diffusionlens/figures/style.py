"""One restrained look for all figures, in light and dark, and a fixed colour, line and marker for every model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; its yellow is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
# The same hues, lighter: the first three are too dim on a dark page.
_COLOURS_DARK = ("#4EA9E0", "#F0813F", "#2FC49B", "#E3A0C6", "#A5D8F6", "#F2C14E")
_LINES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)), "-", "--")
_MARKERS = ("o", "s", "^", "D", "v", "P")

_COMMON: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,  # 16.98 at a tick, not 0.00 below a corner's "+1.698e1"
    "axes.formatter.limits": (-7, 7),  # nor 0.5 below "1e-5"
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "pdf.fonttype": 42,  # slower to embed than type 3, which some journals refuse
    "text.parse_math": False,  # a "$" in a file name is a "$"
    "figure.constrained_layout.use": False,  # `new_figure` asks for it; as a default it would come back after each saving
    "figure.autolayout": False,
    "image.interpolation": "nearest",
}
_LIGHT = {"ink": "#1c2430", "soft": "#5b6675", "grid": "#e3e7ec", "paper": "#ffffff"}
_DARK = {"ink": "#e6e9ee", "soft": "#a3adba", "grid": "#323a46", "paper": "#171b21"}

SOFT = "0.5"
DPI = 160
_NARROWEST = (
    1e-4  # of an axis, as a share of its numbers: float32 rounds at 1e-7, and every tick below takes a digit more
)


@contextmanager
def look(*, dark: bool = False) -> Iterator[None]:
    """Figures made inside have the house style, for a light or a dark page."""
    tones = _DARK if dark else _LIGHT
    colours: dict[str, Any] = {
        "text.color": tones["ink"],
        "axes.labelcolor": tones["ink"],
        "axes.titlecolor": tones["ink"],
        "axes.edgecolor": tones["soft"],
        "xtick.color": tones["soft"],
        "ytick.color": tones["soft"],
        "grid.color": tones["grid"],
        "figure.facecolor": tones["paper"],
        "axes.facecolor": tones["paper"],
        "savefig.facecolor": tones["paper"],
        "legend.labelcolor": tones["ink"],
        "axes.prop_cycle": cycler(color=_COLOURS_DARK if dark else _COLOURS),
    }
    with mpl.rc_context(_COMMON | colours):  # type: ignore[arg-type]
        yield


@dataclass(frozen=True)
class ModelLook:
    """How one model is drawn, the same in every figure."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str


def model_looks(models: Sequence[str]) -> dict[str, ModelLook]:
    """A look for every model, by its place, in the colours of the page that is drawn for. Behind the sixth, colours come again
    with other lines and markers, so that 36 models look different."""
    colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    looks = {}
    for place, model in enumerate(models):
        turn, at = divmod(place, len(colours))
        line, marker = _LINES[(at + turn) % len(_LINES)], _MARKERS[(at + turn) % len(_MARKERS)]
        looks[model] = ModelLook(colours[at], line, marker)
    return looks


def legend_names(models: Sequence[str]) -> dict[str, str]:
    """Model -> its name in a legend, where matplotlib would leave out a name that begins with "_"."""
    return {model: f"\u200b{model}" if model.startswith("_") else model for model in models}


def short_names(models: Sequence[str], limit: int) -> dict[str, str]:
    """Model -> its name in at most `limit` characters, cut in the middle; longer where names would become the same."""
    while True:
        names = {model: _cut(model, limit) for model in models}
        if len(set(names.values())) == len(names):
            return names
        limit += 2


def _cut(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    head = limit // 2
    return f"{name[:head]}…{name[len(name) - (limit - head - 1) :]}"


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches that no global list keeps alive."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _widen(figure: Figure) -> None:
    """Gives axes of numbers that are all but the same a range that can be read, in place of their rounding errors'."""
    for axes in figure.axes:
        ways = (
            (axes.get_autoscalex_on(), axes.get_xscale, axes.get_xlim, axes.set_xlim),
            (axes.get_autoscaley_on(), axes.get_yscale, axes.get_ylim, axes.set_ylim),
        )
        for chosen_by_matplotlib, scale, limits, set_limits in ways:
            low, high = limits()
            half = _NARROWEST / 2 * max(abs(low), abs(high))
            if chosen_by_matplotlib and scale() == "linear" and 0 <= high - low < 2 * half:
                middle = (low + high) / 2
                set_limits(middle - half, middle + half)


def freeze_layout(figure: Figure, like: Figure | None = None) -> None:
    """Lays the figure out once, or as `like`, a frozen figure of the same panels: each saving would do it again. Axes of numbers
    that differ by rounding alone are widened before.

    With an engine of any kind, also the one called "none", matplotlib draws a figure once more before each saving.
    """
    _widen(figure)
    if like is None:
        figure.draw_without_rendering()
    figure.set_layout_engine(None)
    if like is not None:
        for axes, model in zip(figure.axes, like.axes, strict=True):
            axes.set_position(model.get_position(original=True))


def save_figure(figure: Figure, directory: Path, stem: str) -> None:
    """Writes STEM.png and STEM.pdf, the same bytes for the same figure, which `freeze_layout` has laid out."""
    figure.savefig(directory / f"{stem}.png", dpi=DPI, metadata={"Software": None})
    figure.savefig(directory / f"{stem}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
