#!/usr/bin/env python3
"""Draws the measurements of bench/cluster/peers.py.

  bench/cluster/draw.py PEERS.json PICTURE.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LABEL, BAR, STEP, TOP = 880, 290, 500, 20, 30
OURS, AHEAD, OTHER, GREY = "#2a6f97", "#a9cce0", "#b08968", "#8a8a8a"


def text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(said)}</text>'


def ticks(least: float, most: float) -> Iterator[float]:
    for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1):
        for digit in (1, 2, 5):
            if least <= digit * 10.0**power <= most:
                yield digit * 10.0**power


def panel(title: str, trace: dict[str, Any], axis: tuple[float, float], top: int) -> tuple[list[str], int]:
    """Returns the SVG lines of a trace, and the y coordinate of its end. `axis` is the seconds at both ends of the axis."""
    variants = list(trace["variants"].values())
    bottom = top + TOP + len(variants) * STEP

    def at(seconds: float) -> float:
        least, most = axis
        return LABEL + BAR * math.log(seconds / least) / math.log(most / least)

    lines = [text(10, top + 18, title, ' font-weight="bold"')]
    said = []
    for tick in ticks(*axis):
        x = at(tick)
        lines.append(f'<line x1="{x:.1f}" y1="{top + TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>')
        lines.append(text(x, bottom + 14, f"{tick:g} s", f' text-anchor="middle" fill="{GREY}"'))
    for i, figures in enumerate(variants):
        y = top + TOP + i * STEP
        seconds = figures["seconds_median"]
        number = f"{seconds:.3g} s"
        bars = [(seconds, OURS if figures["ours"] else OTHER)]
        if "announced" in figures:
            ahead = figures["announced"]["seconds_median"]
            number += f", and {ahead:.3g} s ahead"
            bars.insert(0, (seconds + ahead, AHEAD))
        lines.append(text(LABEL - 8, y + 12, figures["label"], ' text-anchor="end"'))
        for until, colour in bars:
            width = at(until) - LABEL
            lines.append(f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{STEP - 5}" fill="{colour}"/>')
        halo = ' stroke="white" stroke-width="4" paint-order="stroke"'
        said.append(text(at(bars[0][0]) + 5, y + 12, number, halo))
    x = at(trace["partitioned_ideal_seconds"])
    ideal = (
        f'<line x1="{x:.1f}" y1="{top + TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="black" stroke-dasharray="3 3"/>'
    )
    return [*lines, ideal, *said], bottom + 28


def picture(report: dict[str, Any]) -> str:
    traces = report["traces"]
    seconds = [figures["seconds_median"] for trace in traces.values() for figures in trace["variants"].values()]
    least = min(seconds + [trace["partitioned_ideal_seconds"] for trace in traces.values()])
    axis = least / 2, max(seconds) * 1.05
    rate = report["network"]["rate_bps"] / 1e6
    title = f"Seconds of a step: {report['workers']} hosts, links of {rate:g} Mbit/s, logarithmic"
    lines = [
        text(10, 20, title, ' font-size="14"'),
        f'<rect x="10" y="32" width="12" height="12" fill="{OURS}"/>',
        text(28, 42, "sparsesync"),
        f'<rect x="110" y="32" width="12" height="12" fill="{AHEAD}"/>',
        text(128, 42, "announced ahead"),
        f'<rect x="250" y="32" width="12" height="12" fill="{OTHER}"/>',
        text(268, 42, "torch, OpenMPI"),
        '<line x1="380" y1="38" x2="408" y2="38" stroke="black" stroke-dasharray="3 3"/>',
        text(415, 42, "partitioned ideal: fewest bytes of a push and a pull, f32, at the link's rate"),
    ]
    end = 52
    for name, trace in traces.items():
        (rows, width), *rest = [(tensor["rows"], tensor["width"]) for tensor in trace["tensors"]]
        shape = f"{rows:,} rows of {width}" + (f", and {len(rest)} tensors more" if rest else "")
        of_trace, end = panel(f"{name}: {shape}", trace, axis, end)
        lines += of_trace
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end}" width="{WIDTH}" height="{end}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{end}" fill="white"/>', *lines, "</svg>\n",
    ])  # fmt: skip


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
