"""The course's one plot style: colours that read in grey, fonts, and how a figure becomes a PNG."""

import io
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from rooflab.view.captions import UNITS as UNITS
from rooflab.view.captions import dates as dates
from rooflab.view.captions import one_device as one_device
from rooflab.view.captions import size_text as size_text
from rooflab.view.captions import telling as telling
from rooflab.view.ticks import round_ticks
from rooflab.view.ticks import size_ticks as size_ticks

# Okabe and Ito's colours, neighbours differing in lightness too; yellow, unreadable on white, is left out.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#D55E00", "#56B4E9", "#009E73", "#CC79A7")


MARKERS = ("o", "s", "^", "D", "v", "P", "X")


DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)))


# The colour of a format of weights, on every chart that compares formats.
FORMAT_COLOURS = {"int4_g128": COLOURS[0], "fp16": COLOURS[1], "q8_0": COLOURS[5]}


ROOF_COLOUR = "#555555"


PEER_COLOUR = "#8A8A8A"


DPI = 100


STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
}


def png(fig: Figure, scale: int = 1) -> bytes:
    """The figure as PNG bytes of 64 colours, a third of the size, and without its writer's name, at `scale`
    times DPI pixels an inch.
    """
    for ax in fig.axes:
        settled(ax)
    drawn, out = io.BytesIO(), io.BytesIO()
    with context():
        fig.savefig(drawn, format="rgba", dpi=scale * DPI)
    width = round(scale * fig.bbox.width)
    size = (width, len(drawn.getvalue()) // (4 * width))
    image = Image.frombytes("RGBA", size, drawn.getvalue()).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True, dpi=(scale * DPI, scale * DPI)
    )
    return out.getvalue()


def context() -> Any:
    return matplotlib.rc_context(STYLE)  # type: ignore[arg-type]  # the stub wants literal keys


def settled(ax: Axes) -> None:
    """A linear y axis of non-negative data starts at zero, so that heights compare; a logarithmic one has
    plain numbers at its ticks.
    """
    if ax.get_yscale() == "log" and isinstance(ax.yaxis.get_major_locator(), matplotlib.ticker.LogLocator):
        round_ticks(ax)
    if ax.get_yscale() == "linear" and ax.get_autoscaley_on() and ax.get_ylim()[0] > -0.1 * ax.get_ylim()[1]:
        top = ax.get_ylim()[1]
        ax.set_ylim(0, top)


def darker(colour: Any) -> tuple[float, float, float]:
    """The colour, darkened until text in it has enough contrast on white."""
    r, g, b = matplotlib.colors.to_rgb(colour)
    while 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 > 0.18:
        r, g, b = r * 0.93, g * 0.93, b * 0.93
    return r, g, b
