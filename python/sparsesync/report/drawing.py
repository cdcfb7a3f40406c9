"""Pictures as inline <svg>: their text stays text, and their colours follow the page's light or dark theme."""

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

# Placeholder colours that matplotlib draws with, and the CSS variables that replace them (defined in page.html.j2).
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
    "text.parse_math": False,  # names come from user files
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
    """A picture, with a text alternative and a table of its numbers."""

    title: str
    caption: str
    alternative: str  # description for screen readers
    svg: Markup
    columns: list[str]  # headings of the table of numbers
    rows: list[list[str]]


numbers = itertools.count(1)


@contextlib.contextmanager
def axes(width: float = 6.4, height: float = 3.4) -> Iterator[matplotlib.axes.Axes]:
    """Yields empty axes to draw into; pass their figure to to_svg() afterwards."""
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()


def logarithmic(
    axis: matplotlib.axis.XAxis | matplotlib.axis.YAxis, words: Callable[[float], str], drawn: Sequence[float]
) -> None:
    """Makes an axis logarithmic if all drawn numbers are positive.

    words: formats a tick's number as plain text, without mathematical notation.
    """
    if all(number > 0 for number in drawn):
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        if max(drawn, default=1) < 100 * min(drawn, default=1):
            axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: words(number))
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def in_a_page(tag: str, prefix: str) -> str:
    """Makes the ids of a tag unique in the page, and its colours those of the page. Text between tags is not changed."""
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    tag = re.sub(r"url\(#", f"url(#{prefix}", tag)
    tag = re.sub(r'href="#', f'href="#{prefix}', tag)
    for colour, variable in VARIABLES.items():
        tag = tag.replace(colour, f"var(--{variable})")
    return tag


def to_svg(figure: matplotlib.figure.Figure, alternative: str) -> Markup:
    """Returns the picture as an <svg> element without a file header, with unique ids."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = f"p{next(numbers)}-"
    svg = re.sub(r"<[^>]*>", lambda tag: in_a_page(tag.group(), prefix), svg)
    # The page sets the size; the label describes the content.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = Markup.escape(alternative)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
