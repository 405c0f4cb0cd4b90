"""How figures look: one colour and mark per model everywhere; SVG for pages, PNG for notebooks."""

from __future__ import annotations

import base64
import html
import io
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.artist import Artist
from matplotlib.figure import Figure as MatplotlibFigure
from PIL import Image

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting.table import NOT_RUN

INK = "#010203"  # stands for the text colour of the page: `currentColor` in the SVG
GOOD, BAD = "#2b7a2b", "#c0302a"  # of verdicts: the page's own in the SVG, which differ in light and dark
GREY = "#888888"  # whatever models are set against: a unigram, a constant answer, another implementation


PALETTE = ("#4c5fa8", "#a05195", "#d45087", "#f0a35e", "#7fb7be", "#6f4a8e", "#b7b04a", GREY)
"""Of what is no model: kinds of operations, kinds of estimates. No colour of a model is in it."""


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
_RC |= {"axes.spines.top": False, "axes.spines.right": False}
_RC |= {"svg.fonttype": "none", "svg.hashsalt": "3ml", "font.size": 11}


FIGURE = "application/vnd.threeml.figure+html"
"""Mime type of a figure's SVG with its caption, which the report takes out of a notebook.

Viewers of notebooks do not know it and show the PNG beside it: they take `text/html` first, and where a notebook is not
trusted they strip the SVG from it.
"""

_OF_PAGE = {INK: "currentColor", GOOD: f"var(--good, {GOOD})", BAD: f"var(--bad, {BAD})"}
_DPI, _COLOURS = 110, 64  # of a PNG, which stands in committed notebooks


class Figure:
    """A figure of matplotlib, which is closed, as inline SVG, whose ink follows the page (light or dark), and as PNG.

    Args:
        figure: to be drawn and closed.
        alt: description for those who do not see it.
        caption: shown below; "": the description.
    """

    def __init__(self, figure: MatplotlibFigure, alt: str, caption: str = "") -> None:
        self.alt, self.caption = alt, caption or alt
        self.figure, buffer = figure, io.StringIO()
        for artist in (each for axis in figure.axes for each in (*axis.lines, *axis.collections) if not each.get_gid()):
            if (label := str(artist.get_label())) and not label.startswith("_"):
                hover(artist, [label.replace(r"\$", "$")])
        with matplotlib.rc_context(_RC):
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        _, tag, svg = buffer.getvalue().partition("<svg")
        for colour, of_page in _OF_PAGE.items():
            svg = svg.replace(colour, of_page)
        svg = re.sub(rf"(?s)<g id=([\"']){_HOVER}(.*?)\1>(.*?</g>)", _titled, tag + svg)
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        # names inside an SVG are global to the page: make them this figure's own
        prefix = f"f{zlib.crc32(alt.encode()):08x}-"
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}", tag[0]), svg)
        label = html.escape(alt, quote=True)
        self.svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def png(self) -> bytes:
        """As a picture of few colours, on white: for viewers of notebooks."""
        pixels, file = io.BytesIO(), io.BytesIO()
        with matplotlib.rc_context(_RC):
            self.figure.savefig(pixels, format="png", bbox_inches="tight", dpi=_DPI, facecolor="white")
        picture = Image.open(pixels).convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
        picture.save(file, format="png", optimize=True)
        return file.getvalue()

    def _repr_html_(self) -> str:
        """The SVG with its caption."""
        return f'<figure class="study">{self.svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>'

    def _ipython_display_(self) -> None:
        """Two outputs: the figure, and for viewers of notebooks its caption, which the report has already."""
        png = base64.b64encode(self.png()).decode()
        display({FIGURE: self._repr_html_(), "image/png": png, "text/plain": repr(self)}, raw=True)
        caption = {"text/html": f"<p><small>{html.escape(self.caption)}</small></p>", "text/plain": self.caption}
        display(caption, raw=True, metadata={"caption": True})


_HOVER = "hover: "  # an artist's id begins so, until its texts are titles


def hover(artist: Artist, texts: Iterable[str]) -> None:
    """What the pointer shows: a text for each mark of an artist, or one for all of it (by itself: its label)."""
    artist.set_gid(_HOVER + "\n".join(texts))


def _titled(group: re.Match[str]) -> str:
    texts, drawn = group[2].split("\n"), group[3]
    parts = re.split(r"(<use [^>]*)/>", drawn)
    if len(texts) == 1 or 2 * len(texts) + 1 != len(parts):
        return f"<g><title>{group[2]}</title>{drawn}"
    marks = (f"{mark}><title>{text}</title></use>" for mark, text in zip(parts[1::2], texts, strict=True))
    return "<g>" + "".join(itertools.chain(*itertools.zip_longest(parts[::2], marks, fillvalue="")))


@contextmanager
def drawing(panels: int = 1, height: float = 3.4, per_row: int = 8) -> Iterator[tuple[MatplotlibFigure, list[Any]]]:
    """A figure as wide as the page and its panels, to be drawn in the report's style; rows of `height` inches."""
    columns, rows = min(panels, per_row), -(-panels // per_row)
    with matplotlib.rc_context(_RC):
        figure, axes = plt.subplots(rows, columns, figsize=(7.4, height * rows), squeeze=False, layout="constrained")
        for number, axis in enumerate(axes.flat):
            axis.grid(True)
            axis.set_visible(number < panels)
        yield figure, list(axes.flat)[:panels]


def plain(text: str) -> str:
    """A label that comes from data: dollars in it are dollars, where matplotlib would read a formula."""
    return text.replace("$", r"\$")


def legend_below(axes: Sequence[Any], columns: int = 4) -> None:
    """One legend for all panels, each label once, in rows; none where nothing is drawn."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        look = {"loc": "outside lower center", "fontsize": 9, "ncols": min(len(entries), columns)}
        axes[0].figure.legend(entries.values(), entries, **look)


def note_not_run(axis: Any) -> None:
    """Say in an empty panel why it is empty."""
    axis.annotate(NOT_RUN, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)


def span_alike(panels: Iterable[tuple[Any, Sequence[float]]]) -> None:
    """Let panels span the same, ten points or more, each about its own scores: noise does not look like an effect."""
    known = [(axis, min(scores), max(scores)) for axis, scores in panels if scores]
    half = max([5, *(0.6 * (high - low) for _, low, high in known)])
    for axis, low, high in known:
        axis.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)


def draw_references(axis: Any, found: Mapping[str, float]) -> None:
    """A grey line where the panel, whose span is set, holds the value; a note of the others at its edge."""
    low, high = axis.get_ylim()
    edges: dict[bool, list[str]] = {True: [], False: []}
    gap = "\n" if axis.get_gridspec().ncols > 3 else " "  # a narrow panel does not hold both in a line
    for (label, value), style in zip(found.items(), (":", "--", "-."), strict=False):
        if low < value < high:
            axis.axhline(value, color=GREY, linestyle=style, linewidth=1.2, label=label)
        else:
            edges[value >= high].append(f"{label}{gap}{value:.1f} {'↑' if value >= high else '↓'}")
    for is_above, notes in edges.items():
        place, look = 0.98 if is_above else 0.02, {"ha": "right", "va": "top" if is_above else "bottom"}
        axis.text(0.98, place, "\n".join(notes), transform=axis.transAxes, fontsize=7.5, color=INK, **look)
