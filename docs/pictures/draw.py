#!/usr/bin/env python3
"""Draws the pictures of the documentation as SVG, in light and dark: docs/pictures/draw.py [--out FOLDER]

comparison.svg shows bench/results/peers.json. A picture follows the reader's colour scheme by itself.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Class: light and dark colour. Okabe and Ito's colours, which differ for colour-blind readers, too.
COLOURS = {
    "paper": ("#ffffff", "#16191d"),
    "ink": ("#1f2328", "#e6e8eb"),
    "soft": ("#6b7280", "#9aa4b2"),
    "empty": ("#eceef1", "#262b33"),
    "dense": ("#9aa1ab", "#7d8590"),
    "rows": ("#0072b2", "#56b4e9"),
    "index": ("#d55e00", "#e69f00"),
    "owner0": ("#0072b2", "#56b4e9"),
    "owner1": ("#d55e00", "#e69f00"),
    "owner2": ("#009e73", "#3fc9a0"),
    "owner3": ("#a8437f", "#cc79a7"),
}
FONT = "font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif"


def style() -> str:
    def rules(shade: int) -> str:
        fills = "".join(f".{name}{{fill:{pair[shade]}}}.line-{name}{{stroke:{pair[shade]}}}" for name, pair in COLOURS.items())
        return fills + "".join(f".on-{name}{{fill:{COLOURS['paper'][shade]}}}" for name in ("rows", "dense", "index"))

    return f"<style>text{{{FONT};font-size:13px}}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


class Picture:
    """An SVG picture of `width` x `height` units; what is added later lies above."""

    def __init__(self, width: float, height: float, title: str) -> None:
        markers = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" class="{name}"/></marker>'
            for name in COLOURS
        )
        self.height = height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img">',
            f"<title>{title}</title>{style()}<defs>{markers}</defs>",
            f'<rect width="{width:g}" height="{height:g}" rx="8" class="paper"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, kind: str, round_by: float = 3) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by:g}" class="{kind}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "ink", anchor: str = "start", size: int = 13, bold: bool = False) -> None:
        font = f"font-size:{size}px" + (";font-weight:600" if bold else "")
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}" style="{font}">{text}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, kind: str = "soft", width: float = 1.5, arrow: bool = True) -> None:
        marker = f' marker-end="url(#{kind})"' if arrow else ""
        self.parts.append(
            f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" class="line-{kind}" stroke-width="{width:g}" '
            f'stroke-linecap="round"{marker}/>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


# Four workers and twelve rows; a row's owner follows from the row alone, as if by `balanced`.
TOUCHED = [{0, 1, 5, 8}, {0, 2, 5, 11}, {1, 3, 5, 10}, {0, 4, 7, 8}]
UNION = set().union(*TOUCHED)
OWNER = [0, 1, 2, 3, 1, 3, 0, 2, 2, 1, 3, 0]
CELL = 14


def strip(picture: Picture, x: float, y: float, rows: Iterable[int], owner: list[int]) -> None:
    rows = set(rows)
    for row in range(12):
        picture.box(x + row * CELL, y, CELL - 2, 18, f"owner{owner[row]}" if row in rows else "empty", 2)


def columns(picture: Picture, headings: list[tuple[float, str, str]]) -> None:
    for x, heading, below in headings:
        picture.text(x, 30, heading, bold=True)
        picture.text(x, 48, below, "soft", size=12)


def balanced() -> Picture:
    picture = Picture(880, 290, "Push and pull with the scheme balanced, four workers")
    left, middle, right = 90, 380, 672
    headings = [(left, "Each worker's gradient", "colour: the row's owner"), (middle, "Owners add", "each owns a quarter of the rows")]
    columns(picture, [*headings, (right, "Every worker has the sum", "same rows, same bits")])
    for worker, rows in enumerate(TOUCHED):
        y = 74 + 52 * worker
        picture.text(16, y + 14, f"worker {worker}")
        strip(picture, left, y, rows, OWNER)
        strip(picture, middle, y, {row for row in UNION if OWNER[row] == worker}, OWNER)
        strip(picture, right, y, UNION, OWNER)
        for other in range(4):
            there = 83 + 52 * other
            if other == worker or any(OWNER[row] == other for row in rows):
                picture.line(left + 172, y + 9, middle - 8, there, f"owner{other}", 1.6, other != worker)
            picture.line(middle + 172, y + 9, right - 8, there, f"owner{worker}", 1.6, other != worker)
    picture.text(314, 276, "push (reduce phase)", "soft", "middle", 12)
    picture.text(606, 276, "pull (gather phase)", "soft", "middle", 12)
    return picture


def owned() -> Picture:
    picture = Picture(860, 340, "The scheme owned with index prefetch")
    timeline(picture, 60, "compute", [(100, 300, "forward", "dense"), (304, 660, "backward", "dense")])
    timeline(picture, 96, "network", [(112, 190, "indices", "index"), (664, 748, "reduce", "rows"), (752, 836, "gather", "rows")])
    picture.text(100, 36, "One training step", bold=True)
    picture.text(200, 115, "prefetched: hidden by the forward pass", "soft", size=12)
    picture.line(664, 148, 664, 132, "soft", 1.5)
    picture.text(660, 162, "values only, without indices", "soft", "middle", 12)
    # All workers know all index sets, so all choose the same owner for a row: one that touched it, and few rows for each.
    owner = [0, 2, 1, 2, 3, 1, 0, 3, 3, 0, 2, 1]
    picture.text(100, 206, "Each row's owner is one of the workers that touched it", bold=True)
    for worker, rows in enumerate(TOUCHED):
        y = 222 + 28 * worker
        picture.text(16, y + 14, f"worker {worker}")
        strip(picture, 100, y, rows, owner)
        mine = sorted(row for row in rows if owner[row] == worker)
        sent = sorted(row for row in rows if owner[row] != worker)
        note = f"owns {names(mine)}" + (f"; sends {names(sent)}" if sent else "; sends nothing in the reduce phase")
        picture.text(284, y + 14, note, "soft", size=12)
    return picture


def names(rows: list[int]) -> str:
    return ("rows " if len(rows) > 1 else "row ") + ", ".join(map(str, rows))


def timeline(picture: Picture, y: float, name: str, spans: list[tuple[float, float, str, str]]) -> None:
    picture.text(16, y + 19, name)
    for begin, end, text, kind in spans:
        picture.box(begin, y, end - begin, 28, kind)
        picture.text((begin + end) / 2, y + 19, text, f"on-{kind}", "middle", 12)


def dear() -> Picture:
    picture = Picture(860, 350, "DeAR hides the gather phase under the next forward pass")
    picture.text(16, 30, "All-reduce during the backward pass (WFBP)", bold=True)
    timeline(picture, 46, "compute", [(100, 330, "backward", "dense"), (540, 640, "forward", "dense"), (644, 844, "backward", "dense")])
    reduces = [(186 + 118 * at, 243 + 118 * at, f"reduce {3 - at}", "rows") for at in range(3)]
    gathers = [(245 + 118 * at, 302 + 118 * at, f"gather {3 - at}", "index") for at in range(3)]
    timeline(picture, 82, "network", reduces + gathers)
    exposed(picture, 334, 536, 134)
    picture.text(16, 190, "DeAR: reduce during backward, gather during the next forward pass", bold=True)
    timeline(picture, 206, "compute", [(100, 330, "backward", "dense"), (420, 520, "forward", "dense"), (524, 724, "backward", "dense")])
    reduces = [(186 + 59 * at, 243 + 59 * at, f"reduce {3 - at}", "rows") for at in range(3)]
    gathers = [(363 + 59 * at, 420 + 59 * at, f"gather {1 + at}", "index") for at in range(3)]
    timeline(picture, 242, "network", reduces + gathers)
    exposed(picture, 334, 416, 294)
    picture.text(100, 336, "Numbers are buckets: 1 holds the first layers, whose weights the forward pass needs first.", "soft", size=12)
    return picture


def exposed(picture: Picture, begin: float, end: float, y: float) -> None:
    picture.line(begin, y, end, y, "soft", 1.5, arrow=False)
    picture.text((begin + end) / 2, y + 16, "exposed", "soft", "middle", 12)


Edge = tuple[int, int, str, float]  # from, to, colour, width


def everyone(kind: str, width: float, receivers: Iterable[int] = range(4)) -> list[Edge]:
    return [(sender, receiver, kind, width) for receiver in receivers for sender in range(4) if sender != receiver]


def ring(kind: str, width: float) -> list[Edge]:
    return [(worker, (worker + 1) % 4, kind, width) for worker in range(4)]


def to_servers(kind: str, widths: list[float]) -> list[Edge]:
    return [edge for server, width in enumerate(widths) for edge in everyone(kind, width, [server])]


def from_servers(kind: str, widths: list[float]) -> list[Edge]:
    return [(server, other, kind, width) for server, width in enumerate(widths) for other in range(4) if other != server]


def exchanges(kind: str, width: float, *pairs: tuple[int, int]) -> list[Edge]:
    return [(sender, receiver, kind, width) for pair in pairs for sender, receiver in (pair, pair[::-1])]


SKEWED, EQUAL = [5, 1.6, 1.2, 1], [1.8] * 4

# Scheme: the steps of its two phases, each with a name below it. Widths of arrows stand for bytes.
SCHEMES: dict[str, list[tuple[str, list[Edge]]]] = {
    "dense_ring": [(f"reduce {step}" if step < 4 else f"gather {step - 3}", ring("dense", 4)) for step in range(1, 7)],
    "dense_direct": [("chunks to owners", to_servers("dense", [2] * 4)), ("sums to all", from_servers("dense", [2] * 4))],
    "dense_native": [("the network's all-reduce", everyone("dense", 2.6))],
    "all_gather": [("all rows to all", everyone("rows", 2.6))],
    "recursive_doubling": [
        ("pairs", exchanges("rows", 2, (0, 1), (2, 3))),
        ("pairs of pairs", exchanges("rows", 3.4, (0, 2), (1, 3))),
    ],
    "sparse_ps": [("push to ranges", to_servers("rows", SKEWED)), ("pull", from_servers("rows", SKEWED))],
    "split_all_gather": [
        ("push to ranges", to_servers("rows", SKEWED)),
        *[(f"ring {step}", ring("rows", 3)) for step in range(1, 4)],
    ],
    "dynamic_split": [
        ("push to ranges", to_servers("rows", SKEWED)),
        *[(f"ring {step}", ring("dense", 3)) for step in range(1, 4)],
    ],
    "block_ps": [("push blocks", to_servers("dense", SKEWED)), ("pull blocks", from_servers("dense", SKEWED))],
    "balanced_hash": [("push by hash", to_servers("rows", [2.2, 1.8, 2.4, 2])), ("pull, bitmap", from_servers("rows", [2.2, 1.8, 2.4, 2]))],
    "balanced": [("push", to_servers("rows", EQUAL)), ("pull", from_servers("rows", EQUAL))],
    "owned": [
        ("index sets", everyone("index", 1)),
        ("values to owners", to_servers("rows", [1.2] * 4)),
        ("sums to all", from_servers("rows", [1.4] * 4)),
    ],
    "two_level": [
        ("inside nodes", exchanges("dense", 4, (0, 1), (2, 3))),
        ("between nodes", exchanges("rows", 1.8, (0, 2), (1, 3))),
        ("inside nodes", exchanges("dense", 4, (0, 1), (2, 3))),
    ],
}


def scheme(name: str) -> Picture:
    steps = SCHEMES[name]
    gap = 104 if len(steps) > 3 else 150
    picture = Picture(120 + gap * len(steps), 232, f"Messages of the scheme {name} among four workers")
    for worker in range(4):
        y = 36 + 40 * worker
        picture.text(12, y + 4, f"worker {worker}", size=12)
        for column in range(len(steps) + 1):
            picture.parts.append(f'<circle cx="{84 + gap * column}" cy="{y}" r="5" class="ink"/>')
    if name == "two_level":
        for node in range(2):
            picture.text(12, 60 + 80 * node, f"node {node}", "soft", size=11)
    for column, (text, edges) in enumerate(steps):
        left = 84 + gap * column
        for sender, receiver, kind, width in edges:
            picture.line(left + 8, 36 + 40 * sender, left + gap - 9, 36 + 40 * receiver, kind, width)
        picture.text(left + gap / 2, 192, text, "soft", "middle", 12)
    at = 84.0
    for kind, text in (("dense", "dense values"), ("rows", "touched rows"), ("index", "indices")):
        if any(edge[2] == kind for _, edges in steps for edge in edges):
            text = {("block_ps", "dense"): "blocks, with zeros", ("owned", "rows"): "values"}.get((name, kind), text)
            picture.box(at, 210, 14, 8, kind, 2)
            picture.text(at + 20, 218, text, "soft", size=11)
            at += 34 + 6.2 * len(text)
    return picture


VARIANTS = [
    ("mpi-owned-announced-bf16", "owned, index prefetch, bf16, MPI"),
    ("ucx-owned-announced", "owned, index prefetch, UCX"),
    ("mpi-auto", "auto (the default), MPI"),
    ("gloo-balanced", "balanced, over torch's Gloo"),
    ("torch-sparse", "torch, sparse all-reduce"),
]


def comparison() -> Picture:
    traces = json.loads((ROOT / "bench/results/peers.json").read_text(encoding="utf-8"))["traces"]
    picture = Picture(860, 50 + 150 * len(traces), "Seconds of a step: sparsesync beside torch.distributed")
    picture.text(16, 28, "Milliseconds of a step, 8 workers with links of 200 Mbit/s; shorter is better", bold=True)
    scale = 420 / max(trace["variants"][name]["seconds_median"] for trace in traces.values() for name, _ in VARIANTS)
    for number, (title, trace) in enumerate(traces.items()):
        top = 56 + 150 * number
        dense = trace["variants"]["torch-dense"]["seconds_median"]
        tensor = trace["tensors"][0]
        picture.text(16, top + 4, f"{title}: {tensor['rows']:,} x {tensor['width']}", bold=True)
        picture.text(844, top + 4, f"torch, dense all-reduce: {1e3 * dense:,.0f} ms, beyond this scale", "soft", "end", 12)
        for row, (name, label) in enumerate(VARIANTS):
            y, seconds = top + 14 + 22 * row, trace["variants"][name]["seconds_median"]
            picture.text(236, y + 13, label, "ink", "end", 12)
            picture.box(246, y, scale * seconds, 17, "rows" if trace["variants"][name]["ours"] else "dense", 2)
            speed_up = trace["variants"]["torch-sparse"]["seconds_median"] / seconds
            figure = f"{1e3 * seconds:.0f} ms" + (f", {speed_up:.1f} x as fast" if name != "torch-sparse" else "")
            picture.text(254 + scale * seconds, y + 13, figure, size=12)
    return picture


LAYERS = [
    ("analysis", "tools that study gradients: trace, profile, compare, plan, simulate, cli", "the laboratory"),
    ("engine", "training: session, planner, transports, memory, sparsifiers", ""),
    ("schemes", "algorithms for one bucket across workers; messages, costs, the Transport interface", "the library"),
    ("kernels", "operations of one device on one tensor, on CPU and CUDA", ""),
]


def layers() -> Picture:
    picture = Picture(860, 330, "The layers of sparsesync; each includes only those below it")
    for x, text, into in ((180, "sparsesync program", 92), (560, "PyTorch package", 156)):
        picture.box(x - 80, 16, 160, 30, "empty")
        picture.text(x, 36, text, anchor="middle", bold=True)
        picture.line(x, 46, x, into - 4)
    for number, (name, text, part) in enumerate(LAYERS):
        y = 92 + 58 * number
        picture.box(40, y, 420 if name == "analysis" else 700, 44, "index" if name == "analysis" else "rows", 5)
        picture.text(54, y + 19, name, "on-rows", bold=True)
        picture.text(54, y + 36, text, "on-rows", size=11)
        picture.text(752, y + 27, part, "soft", size=12)
        if number < 3:
            picture.line(250, y + 44, 250, y + 56)
    return picture


def pictures() -> dict[str, Picture]:
    drawn = {"balanced": balanced(), "owned": owned(), "dear": dear(), "comparison": comparison(), "layers": layers()}
    return drawn | {f"schemes/{name}": scheme(name) for name in SCHEMES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder (default: docs/pictures)")
    out = parser.parse_args().out
    for name, picture in pictures().items():
        path = out / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
