#!/usr/bin/env python3
"""Compares the transports between processes of one machine with each other and with torch's Gloo.

    bench/cluster/one_machine.py [--workers 2 4 8] [--rounds 3] [--repeat 15] [--most-bytes BYTES]
                                 [--out bench/results/one_machine.json]

Needs mpirun, and a Python with torch. Measures dense all-reduces, all-gathers and sparse all-reduces of several sizes. torchrun
starts the ranks of Gloo and UCX, mpirun those of MPI; the ranks of `local` are threads of one process. A wrong result ends the
benchmark. Prints a table for each number of workers, and writes JSON.
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
from typing import Any

from cluster import ROOT, write_results
from peers import aligned, environment

RANK = pathlib.Path(__file__).resolve().parent / "one_machine_rank.py"
LAUNCHERS = ("torch", "mpi", "threads")
LONGEST_S = 1800  # seconds, for one start of the ranks


def start(launcher: str, workers: int, given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Starts the ranks once. Returns {case: {label: (seconds, processor seconds) of each step}}, and what ran."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(RANK), launcher, str(given.repeat), str(given.most_bytes), folder]
        if launcher == "torch":
            words = ["-m", "torch.distributed.run", "--nproc-per-node", str(workers), *words]
        words = [sys.executable, *words]
        if launcher == "mpi":
            words = [str(ROOT / "cmake/mpirun.sh"), "-np", str(workers), *words]
        more = environment(given.build) | {"WORKERS": str(workers)}
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=LONGEST_S, env=os.environ | more)
        files = sorted(pathlib.Path(folder).glob("*.json"))
        if done.returncode or len(files) != workers:
            sys.exit(f"one_machine: {launcher} with {workers} workers failed:\n{done.stderr}")
        ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    steps: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case, of_case in ranks[0]["seen"].items():
        steps[case] = {}
        for name in of_case:
            together = zip(*(rank["seen"][case][name] for rank in ranks), strict=True)
            steps[case][name] = [
                (max(end for _, end, _ in step) - min(begin for begin, _, _ in step), sum(busy for *_, busy in step))
                for step in together
            ]
    return steps, ranks[0]["provenance"] | {"torch": ranks[0]["torch"]}


def measure_workers(workers: int, given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns {case: {label: figures}}: medians of the rounds' medians."""
    rounds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    origin: dict[str, Any] = {}
    for number in range(given.rounds):
        for launcher in LAUNCHERS:
            began = time.monotonic()
            steps, origin = start(launcher, workers, given)
            for case, of_case in steps.items():
                for name, seen in of_case.items():
                    medians = tuple(map(statistics.median, zip(*seen, strict=True)))
                    rounds.setdefault(case, {}).setdefault(name, []).append((medians[0], medians[1]))
            said = f"{workers} workers, round {number + 1} of {given.rounds}, {launcher}"
            print(f"{said}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {}
    for case, of_case in rounds.items():
        figures[case] = {}
        peer = statistics.median(seconds for seconds, _ in of_case["torch, Gloo"])
        for name, medians in of_case.items():
            seconds, processor = map(statistics.median, zip(*medians, strict=True))
            figures[case][name] = {"seconds": seconds, "processor_seconds": processor, "times_torch": peer / seconds}
    return figures, origin


def table(figures: dict[str, Any]) -> list[str]:
    lines = [("", "ms", "processor ms", "x torch")]
    for case, of_case in figures.items():
        lines.append((case, "", "", ""))
        for name, each in of_case.items():
            milliseconds = (f"{1e3 * each[key]:.3f}" for key in ("seconds", "processor_seconds"))
            lines.append((f"  {name}", *milliseconds, f"{each['times_torch']:.2f}"))
    return aligned(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=15, help="steps of each measurement (%(default)s)")
    parser.add_argument("--most-bytes", type=int, default=1 << 30, help="leave out larger operations")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/one_machine.json")
    given = parser.parse_args()
    made = {workers: measure_workers(workers, given) for workers in given.workers}
    for workers, (figures, _) in made.items():
        print(f"\n{workers} workers")
        print("\n".join(table(figures)))
    report = {"rounds": given.rounds, "repeat": given.repeat, "workers": {str(n): of for n, (of, _) in made.items()}}
    write_results(given.out, report | {"provenance": made[given.workers[-1]][1]})
    print(f"\nwritten: {given.out}")


if __name__ == "__main__":
    main()
