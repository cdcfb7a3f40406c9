#!/usr/bin/env python3
"""Draws the measurements of bench/kernels/run.

  bench/kernels/draw.py KERNELS.json PICTURE.svg
"""

import json
import sys
from pathlib import Path

COUNT = "rows:100000007/count:1048576"
WIDTH, LABEL, BAR, STEP, TOP = 760, 250, 380, 22, 34
OURS, OTHER, BASELINE = "#2a6f97", "#b08968", "#8a8a8a"


def codes(rows):
    """Returns tuples (label, indices per second, colour)."""
    rows = rows["index_code"]
    for kind in ("encode", "decode"):
        for code, label in (("elias_fano", "Elias-Fano"), ("coo", "COO"), ("bitmap", "bitmap"), (None, "CRoaring")):
            row = rows[f"{kind}/{code}/{COUNT}" if code else f"{kind}_roaring/{COUNT}"]
            yield f"{label}, {kind} ({row['bits_per_index']:.1f} bits)", row["items_per_second"] / 1e6, OURS if code else OTHER


def streams(rows):
    """Returns tuples (label, share of the triad's bytes per second, colour)."""
    yield "triad", 1.0, BASELINE
    for bench, name, label in (
        ("compact", "compact_rows/width:{}/per_mille:10/threads:1", "compact"),
        ("aggregate", "aggregate_parts/workers:8/width:{}/per_mille:10/threads:1", "aggregate, 8 workers"),
    ):
        triad = rows[bench]["triad/threads:1"]["bytes_per_second"]
        for width in (8, 32, 128):
            yield f"{label}, width {width}", rows[bench][name.format(width)]["bytes_per_second"] / triad, OURS


def panel(title, bars, form, top):
    """Returns the SVG lines of a panel, and the y coordinate of its end."""
    bars = list(bars)
    scale = BAR / max(value for _, value, _ in bars)
    lines = [f'<text x="10" y="{top + 18}" font-weight="bold">{title}</text>']
    for i, (label, value, colour) in enumerate(bars):
        y = top + TOP + i * STEP
        lines += [
            f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{label}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{value * scale:.1f}" height="{STEP - 7}" fill="{colour}"/>',
            f'<text x="{LABEL + value * scale + 6:.1f}" y="{y + 12}">{form.format(value)}</text>',
        ]
    return lines, top + TOP + len(bars) * STEP + 12


def picture(result):
    rows = result["benches"]
    first, end = panel("Index codes: 2^20 of 100,000,007 rows, indices per second, one core", codes(rows), "{:.0f} M", 0)
    second, end = panel("Rows, density 1%: bytes per second over the triad's, one core", streams(rows), "{:.2f}", end)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end}" width="{WIDTH}" height="{end}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{end}" fill="white"/>', *first, *second, "</svg>\n",
    ])  # fmt: skip


def main(arguments):
    if len(arguments) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
