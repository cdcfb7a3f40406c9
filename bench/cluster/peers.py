#!/usr/bin/env python3
"""Compares sparsesync with torch and OpenMPI on eight hosts that are network namespaces with links of 200 Mbit/s.

    bench/cluster/peers.py DATA [--rounds 3] [--repeat 7] [--dense-repeat 1] [--nice 0] [--out bench/results/peers.json]

Needs root, and a Python with torch. DATA is a folder with lm1b_tokens.npy (token ids, 1-D) and criteo_fields.npy (categorical
fields, 2-D). All variants (bench/cluster/variants.py) get the same gradients, on ranks that mpirun or torchrun started on the hosts.
A result that differs from the sum of the trace's files ends the benchmark. Prints a table for each trace, and writes a JSON file with
a picture beside it; docs/performance/cluster.md explains each figure.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import draw
from cluster import RATE_BPS, ROOT, write_results
from hosts import Hosts
from variants import BY_KEY, DENSE_PEER, LAUNCHERS, SPARSE_PEER, VARIANTS, Variant

PROGRAM = pathlib.Path(__file__).resolve().parent / "exchange.py"
WORKERS = 8
WIDTH = 32
LONGEST_S = 3600  # seconds, for one start of the ranks

Traces = dict[str, pathlib.Path]


def make_traces(program: pathlib.Path, data: pathlib.Path, workers: int, folder: pathlib.Path) -> Traces:
    tokens = ("from-tokens", data / "lm1b_tokens.npy", "--rows", 793471, "--batch", 2560)
    words = {
        "LM1B": tokens,
        "LM1B, 8192 sampled": (*tokens, "--sampled", 8192),
        "Criteo": ("from-fields", data / "criteo_fields.npy", "--batch", 1024),
    }
    made = {}
    for number, (name, of_trace) in enumerate(words.items()):
        made[name] = folder / f"trace{number}"
        common = ("--width", WIDTH, "--workers", workers, "--out", made[name])
        subprocess.run([str(program), "trace", *map(str, (*of_trace, *common))], check=True, capture_output=True)
    return made


def lower_bounds(program: pathlib.Path, trace: pathlib.Path, workers: int) -> dict[str, Any]:
    """Returns the lower bounds and sizes of a trace, which need no cluster."""
    words = ["compare", trace, "--schemes", "balanced", "--clock", "virtual", "--repeat", 1, "--json", "-"]
    done = subprocess.run([str(program), *map(str, words)], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"peers: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["workers"] != workers:
        sys.exit(f"peers: {trace} has {report['workers']} workers, but there are {workers} hosts; pass --hosts {report['workers']}")
    keys = ("tensors", "workers", "partitioned_ideal_bytes", "lower_bound_bytes")
    return {key: report[key] for key in keys} | {
        "partitioned_ideal_seconds": report["partitioned_ideal_bytes"] * 8 / RATE_BPS
    }


class Bench:
    """Starts the ranks on the hosts and keeps the measurements of each rank."""

    def __init__(self, hosts: Hosts, given: argparse.Namespace, traces: Traces, folder: pathlib.Path) -> None:
        self.hosts, self.given, self.traces, self.folder = hosts, given, traces, folder
        self.variants = [each for each in VARIANTS if not given.variants or each.key in given.variants]
        self.origin: dict[str, Any] = {}

    def run(self, launcher: str, counts: bool) -> list[dict[str, Any]]:
        """Starts the ranks once. Returns [rank][trace][variant]."""
        variants = [each.key for each in self.variants if each.launcher == launcher]
        if not variants:
            return []
        plan = {
            "launcher": launcher,
            "traces": {name: str(path) for name, path in self.traces.items()},
            "variants": variants,
            "repeat": self.given.repeat,
            "dense_repeat": self.given.dense_repeat,
            "shapers": [self.hosts.shapers(rank) for rank in range(self.given.hosts)] if counts else [],
        }
        with tempfile.TemporaryDirectory(dir=self.folder) as told:
            file = pathlib.Path(told) / "plan.json"
            file.write_text(json.dumps(plan), encoding="utf-8")
            options = {"timeout": LONGEST_S, "environment": environment(self.given.build)}
            if launcher == "torch":
                self.hosts.torchrun(PROGRAM, file, told, **options)
            else:
                self.hosts.mpirun(sys.executable, PROGRAM, file, told, **options)
            ranks = [
                json.loads((pathlib.Path(told) / f"{rank}.json").read_text(encoding="utf-8"))
                for rank in range(self.given.hosts)
            ]
        self.origin = {**ranks[0]["provenance"], "torch": ranks[0]["torch"]}
        return [rank["seen"] for rank in ranks]

    def measure(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns {trace: {variant: figures}}."""
        rounds: dict[str, list[list[dict[str, Any]]]] = {launcher: [] for launcher in LAUNCHERS}
        self.hosts.shape(RATE_BPS)
        for number in range(self.given.rounds):
            for launcher, seen in rounds.items():
                began = time.monotonic()
                seen.append(self.run(launcher, counts=number == 0))
                said = f"round {number + 1} of {self.given.rounds}, {launcher}"
                print(f"{said}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        figures: dict[str, dict[str, dict[str, Any]]] = {}
        for trace in self.traces:
            figures[trace] = {
                each.key: summary(each, [[rank[trace][each.key] for rank in ranks] for ranks in rounds[each.launcher]])
                for each in self.variants
            }
            compare(figures[trace])
        return figures


def environment(build: pathlib.Path) -> dict[str, str]:
    """Returns the environment of the ranks: one thread each, because the hosts share the machine's cores; a crash prints a traceback."""
    python = {"PYTHONPATH": str(build.resolve() / "python"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"}
    return python | {"OMP_NUM_THREADS": "1"}


def spans(ranks: list[dict[str, Any]], what: str = "") -> list[float]:
    """Returns for each step the seconds from the first rank's begin to the last rank's end."""
    begins = zip(*(rank[f"{what}begin"] for rank in ranks), strict=True)
    ends = zip(*(rank[f"{what}end"] for rank in ranks), strict=True)
    return [max(end) - min(begin) for begin, end in zip(begins, ends, strict=True)]


def busiest(moved: list[list[dict[str, int]]]) -> dict[str, float]:
    """Returns the bytes per step of the rank with the most, averaged over steps. `moved` is [rank][step]."""
    sent, received = (
        max(statistics.mean(step[way] for step in of_rank) for of_rank in moved) for way in ("sent", "received")
    )
    return {"bytes_sent_max": sent, "bytes_received_max": received, "bytes_busiest": max(sent, received)}


def summary(variant: Variant, rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Summarizes one variant on one trace. `rounds` is [round][rank]; the links were counted in the first round."""
    seconds = [spans(ranks) for ranks in rounds]
    medians = [statistics.median(of_round) for of_round in seconds]
    median = statistics.median(medians)
    # Seconds per step, summed over all ranks.
    processor = [sum(step) for ranks in rounds for step in zip(*(rank["processor"] for rank in ranks), strict=True)]
    figures: dict[str, Any] = {
        "label": variant.label,
        "launcher": variant.launcher,
        "ours": variant.is_ours,
        "correct": True,
        "seconds_median": median,
        "seconds_min": min(map(min, seconds)),
        "seconds_medians": medians,
        "processor_seconds": statistics.median(processor),
        "link": busiest([[rank["link"]] for rank in rounds[0]]),
    }
    figures["over_link_by_rate"] = median * RATE_BPS / (8 * figures["link"]["bytes_busiest"])
    if variant.is_ours:
        figures["schemes"] = [ranks[0]["scheme"] for ranks in rounds]
        figures |= busiest([rank["moved"] for rank in rounds[0]])
        figures["over_bytes_by_rate"] = median * RATE_BPS / (8 * figures["bytes_busiest"])
    if variant.announces:
        ahead = [statistics.median(spans(ranks, "announce_")) for ranks in rounds]
        moved = busiest([rank["announce_moved"] for rank in rounds[0]])
        figures["announced"] = {"seconds_median": statistics.median(ahead), **moved}
    return figures


def compare(of_trace: dict[str, dict[str, Any]]) -> None:
    """Adds each variant's speed-up over torch's two baselines."""
    for peer in (SPARSE_PEER, DENSE_PEER):
        if peer not in of_trace:
            continue
        for figures in of_trace.values():
            figures[f"times_{peer}"] = of_trace[peer]["seconds_median"] / figures["seconds_median"]


def table(of_trace: dict[str, dict[str, Any]]) -> list[str]:
    def number(figures: dict[str, Any], key: str, form: str, scale: float = 1) -> str:
        return format(figures[key] * scale, form) if key in figures else "-"

    lines = [("", "seconds", "min", "MB", "x bytes/rate", "MB on link", "x link/rate", "x sparse", "x dense")]
    for figures in of_trace.values():
        lines.append((
            figures["label"],
            number(figures, "seconds_median", ".4f"),
            number(figures, "seconds_min", ".4f"),
            number(figures, "bytes_busiest", ".3f", 1e-6),
            number(figures, "over_bytes_by_rate", ".3f"),
            number(figures["link"], "bytes_busiest", ".3f", 1e-6),
            number(figures, "over_link_by_rate", ".3f"),
            number(figures, f"times_{SPARSE_PEER}", ".2f"),
            number(figures, f"times_{DENSE_PEER}", ".1f"),
        ))  # fmt: skip
        if "announced" in figures:
            ahead = figures["announced"]
            seconds, megabytes = number(ahead, "seconds_median", ".4f"), number(ahead, "bytes_busiest", ".3f", 1e-6)
            lines.append(("  its indices, ahead", seconds, "", megabytes, "", "", "", "", ""))
    return aligned(lines)


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligns the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, nargs="?")
    parser.add_argument("--trace", type=pathlib.Path, action="append", help="a recorded trace to use instead of DATA")
    parser.add_argument("--variants", nargs="+", choices=list(BY_KEY), metavar="KEY", help=", ".join(BY_KEY))
    parser.add_argument("--hosts", type=int, default=WORKERS)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/peers.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--dense-repeat", type=int, default=1, help="steps of variants that send whole tensors (%(default)s)")
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("peers: network namespaces need root")
    if (given.data is None) == (not given.trace):
        parser.error("pass either DATA or --trace")
    for file in (given.data / "lm1b_tokens.npy", given.data / "criteo_fields.npy") if given.data else ():
        if not file.exists():
            sys.exit(f"peers: {file} does not exist; pass the folder that contains it")
    if not list((given.build / "python/sparsesync").glob("_native.*.so")):
        sys.exit(f"peers: {given.build} contains no Python package; build the target sparsesync_package")
    return given


def main() -> None:
    given = arguments()
    os.nice(given.nice)
    program = given.build.resolve() / "bin/sparsesync"
    with Hosts(given.hosts) as hosts, tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        if given.trace:
            traces = {path.name: path.resolve() for path in given.trace}
        else:
            traces = make_traces(program, given.data, given.hosts, folder)
        known = {name: lower_bounds(program, path, given.hosts) for name, path in traces.items()}
        bench = Bench(hosts, given, traces, folder)
        figures = bench.measure()
        report = {
            "workers": given.hosts,
            "network": hosts.network(RATE_BPS),
            "rounds": given.rounds,
            "repeat": given.repeat,
            "dense_repeat": given.dense_repeat,
            "traces": {name: {**known[name], "variants": figures[name]} for name in traces},
            "provenance": bench.origin | {"nice": given.nice, **hosts.mpi_settings()},
        }
    for name, of_trace in figures.items():
        print(f"\n{name}")
        print("\n".join(table(of_trace)))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, report)
    picture = given.out.with_suffix(".svg")
    picture.write_text(draw.picture(report), encoding="utf-8")
    print(f"\nwritten: {given.out}, {picture}")


if __name__ == "__main__":
    main()
