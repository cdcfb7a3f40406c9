"""Pictures as <svg> that stands in a page: its text is text, its colours are those of the page, light or dark."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.axes
import matplotlib.axis
import matplotlib.figure
import matplotlib.ticker
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

# Colours that are drawn with, and what they become in the page (page.html.j2 says what these are).
INK = "#010101"
PAPER = "#fefefe"
FAINT = "#0a0b0c"
SERIES = [f"#0102{10 + i:02x}" for i in range(8)]
VARIABLES = {INK: "ink", PAPER: "paper", FAINT: "faint", **{colour: f"series-{i}" for i, colour in enumerate(SERIES)}}
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["-", "--", ":", "-."]

STYLE: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsesync",
    "text.parse_math": False,  # names come from outside
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@dataclasses.dataclass
class Picture:
    """A picture, and all of it in words and numbers."""

    title: str
    caption: str
    alternative: str  # what it shows, for whom does not see it
    svg: Markup
    columns: list[str]  # of the table of what is drawn
    rows: list[list[str]]


numbers = itertools.count(1)


@contextlib.contextmanager
def axes(width: float = 6.4, height: float = 3.4) -> Iterator[matplotlib.axes.Axes]:
    """An empty picture to draw into; `to_svg()` of its figure afterwards."""
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()


def logarithmic(
    axis: matplotlib.axis.XAxis | matplotlib.axis.YAxis, words: Callable[[float], str], drawn: Sequence[float]
) -> None:
    """Makes an axis logarithmic if all that is `drawn` is above 0, its ticks in `words`(number): without mathematical text."""
    if all(number > 0 for number in drawn):
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        if max(drawn, default=1) < 100 * min(drawn, default=1):
            axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: words(number))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def in_a_page(tag: str, prefix: str) -> str:
    """A tag with ids that are the picture's own, and colours that are the page's. Text between tags is left alone."""
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    tag = re.sub(r"url\(#", f"url(#{prefix}", tag)
    tag = re.sub(r'href="#', f'href="#{prefix}', tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, f"var(--{variable})")
    return tag


def to_svg(figure: matplotlib.figure.Figure, alternative: str) -> Markup:
    """@return markup: <svg> without the header of a file, with ids of its own"""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = f"p{next(numbers)}-"
    svg = re.sub(r"<[^>]*>", lambda tag: in_a_page(tag.group(), prefix), svg)
    # Its size is the page's; what it shows is said in words.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = Markup.escape(alternative)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
