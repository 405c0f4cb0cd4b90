"""How figures look: one colour per model everywhere, inline SVG whose ink follows the page (light or dark)."""

from __future__ import annotations

import html
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure as MatplotlibFigure

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting.table import NOT_RUN

INK = "#010203"  # stands for the text colour of the page: `currentColor` in the SVG
GREY = "#888888"  # whatever models are set against: a unigram, a constant answer, another implementation


def look_of(architecture: str) -> dict[str, Any]:
    """Colour, marker and line style of an architecture, as matplotlib's arguments."""
    of = ARCHITECTURES[architecture]
    return {"color": of.colour, "marker": of.marker, "linestyle": of.linestyle}


def color_of(architecture: str | None) -> str:
    """The colour of an architecture; None: purple, of an encoder that is none of them."""
    return "#b5559d" if architecture is None else ARCHITECTURES[architecture].colour


_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
_RC: Any = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")
_RC |= {**dict.fromkeys(_INKED, INK), "grid.color": GREY, "grid.alpha": 0.3, "legend.frameon": False}
_RC |= {"svg.fonttype": "none", "svg.hashsalt": "3ml", "font.size": 11}


class Figure:
    """A figure of matplotlib, which is closed, as inline SVG with a description for those who do not see it."""

    def __init__(self, figure: MatplotlibFigure, alt: str) -> None:
        self.alt = alt
        buffer = io.StringIO()
        with matplotlib.rc_context(_RC):
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        _, tag, svg = buffer.getvalue().replace(INK, "currentColor").partition("<svg")
        svg = re.sub(r"<metadata>.*?</metadata>", "", tag + svg, flags=re.DOTALL)
        # names inside an SVG are global to the page: make them this figure's own
        prefix = f"f{zlib.crc32(alt.encode()):08x}-"
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}", tag[0]), svg)
        label = html.escape(alt, quote=True)
        self.svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_html_(self) -> str:
        return f'<figure class="study">{self.svg}<figcaption>{html.escape(self.alt)}</figcaption></figure>'


@contextmanager
def drawing(panels: int = 1, height: float = 3.4, per_row: int = 8) -> Iterator[tuple[MatplotlibFigure, list[Any]]]:
    """A figure as wide as the page and its panels, to be drawn in the report's style; rows of `height` inches."""
    columns, rows = min(panels, per_row), -(-panels // per_row)
    with matplotlib.rc_context(_RC):
        figure, axes = plt.subplots(rows, columns, figsize=(7.4, height * rows), squeeze=False, layout="constrained")
        for number, axis in enumerate(axes.flat):
            axis.grid(True)
            sns.despine(ax=axis)
            axis.set_visible(number < panels)
        yield figure, list(axes.flat)[:panels]


def plain(text: str) -> str:
    """A label that comes from data: dollars in it are dollars, where matplotlib would read a formula."""
    return text.replace("$", r"\$")


def legend_below(axis: Any, columns: int = 0) -> None:
    """One legend for all panels, with each label of `axis` once; none where nothing is drawn."""
    handles, labels = axis.get_legend_handles_labels()
    if entries := dict(zip(labels, handles, strict=True)):
        look = {"loc": "outside lower center", "fontsize": 9, "ncols": columns or len(entries)}
        axis.figure.legend(entries.values(), entries, **look)


def note_not_run(axis: Any) -> None:
    """Say in an empty panel why it is empty."""
    axis.annotate(NOT_RUN, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)


def show_ten_points(axis: Any, scores: Sequence[float]) -> None:
    """Let the panel span ten points or more, so that noise does not look like an effect."""
    if scores:
        middle, half = (max(scores) + min(scores)) / 2, max(5, 0.6 * (max(scores) - min(scores)))
        axis.set_ylim(middle - half, middle + half)
