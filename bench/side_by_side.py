#!/usr/bin/env python3
"""Holds one build against another: the same bytes on the wire, and how long each takes, in turn.

    bench/side_by_side.py OLD NEW [--data DATA] [--rounds 5] [--out FILE]

OLD and NEW are release builds, such as build/release of two checkouts. Traces are drawn, and taken from DATA if it is given
(lm1b_tokens.npy, criteo_fields.npy). Both programs compare all schemes on each of them, on the virtual clock, and every bench
of kernels is run by both, one after the other in every round, OLD first in one and NEW in the next. What counts is the median
of the rounds' ratios NEW / OLD, each of neighbours in time: an absolute time on a shared machine means nothing.
Exit status 1 if a scheme's bytes or messages differ; times decide nothing here.
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Of what `compare` says of a scheme, what must be the same.
COUNTED = ["bytes_busiest", "bytes_sent_max", "bytes_received_max", "bytes_total", "bytes_index", "bytes_values", "messages"]
LINK = ["--clock", "virtual", "--rate", "25gbit", "--latency", "10us"]
SYNTHETIC = {
    "rows of width 32": ["--rows", 200_000, "--width", 32, "--density", 0.01, "--zipf", 1.1],
    "rows of width 128": ["--rows", 100_000, "--width", 128, "--density", 0.01, "--zipf", 1.1],
    "dense": ["--rows", 20_000, "--width", 16, "--density", 0.4, "--zipf", 0.5],
}
WORKERS = [7, 8]


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"side_by_side: {command[0]}: {done.stderr.strip()}")
    return done.stdout


def traces(data):
    """{name: what `sparsesync trace` makes it from}"""
    made = {name: ["synthetic", *words, "--seed", 5] for name, words in SYNTHETIC.items()}
    if data:
        lm1b = ["from-tokens", data / "lm1b_tokens.npy", "--rows", 793471, "--batch", 2560]
        made["lm1b"] = [*lm1b, "--width", 128]
        made["criteo"] = ["from-fields", data / "criteo_fields.npy", "--batch", 1024, "--width", 32]
    return made


def compared(build, trace):
    """{scheme: its figures}; `auto` goes by times, and its bytes with them."""
    report = json.loads(run([build / "bin/sparsesync", "compare", trace, *LINK, "--repeat", 3, "--json", "-"]))
    figures = {scheme["name"]: scheme for scheme in report["schemes"] if "skipped" not in scheme}
    assert all(scheme["correct"] for scheme in figures.values())
    return {name: scheme for name, scheme in figures.items() if name != "auto"}


def benched(bench, build):
    """{benchmark: seconds}"""
    words = [build / "bench/kernels" / bench, "--benchmark_format=json", "--benchmark_min_time=0.05"]
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
    return {
        each["name"]: each["cpu_time"] * units[each["time_unit"]]
        for each in json.loads(run(words))["benchmarks"]
        if not each.get("error_occurred") and each["cpu_time"] > 0
    }


def in_turn(builds, rounds, measure):
    """[(what `measure` gives of the old build, of the new one)] of each round."""
    results = []
    for number in range(rounds):
        order = builds if number % 2 == 0 else builds[::-1]
        of = {build: measure(build) for build in order}
        results.append((of[builds[0]], of[builds[1]]))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def ratios(pairs, seconds):
    """{name: median of the rounds' ratios}; `seconds` takes what was measured to {name: seconds}."""
    rounds = [(seconds(old), seconds(new)) for old, new in pairs]
    names = set.intersection(*[set(of) for pair in rounds for of in pair])
    return {name: statistics.median(new[name] / old[name] for old, new in rounds) for name in sorted(names)}


def tell(name, of):
    print(f"{name}: median {statistics.median(of.values()):.3f} of {len(of)}")
    worst = sorted(of.items(), key=lambda item: -item[1])
    print("    slowest beside the old: " + ", ".join(f"{each} {ratio:.3f}" for each, ratio in worst[:4]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    builds = [given.old.resolve(), given.new.resolve()]
    found, different = {"compare": {}, "kernels": {}}, []
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        for name, words in traces(given.data and given.data.resolve()).items():
            for workers in WORKERS:
                run([builds[1] / "bin/sparsesync", "trace", *words, "--workers", workers, "--out", trace, "--force"])
                pairs = in_turn(builds, given.rounds, lambda build: compared(build, trace))
                cell = f"{name}, {workers} workers"
                for old, new in pairs:
                    if set(old) != set(new):
                        different.append(f"{cell}: {', '.join(sorted(set(old) ^ set(new)))} in one build alone")
                    different += [
                        f"{cell}, {scheme}: {key} {old[scheme][key]} and {new[scheme][key]}"
                        for scheme in sorted(set(old) & set(new))
                        for key in COUNTED
                        if old[scheme][key] != new[scheme][key]
                    ]
                of = ratios(pairs, lambda figures: {each: figures[each]["seconds_median"] for each in figures})
                found["compare"][cell] = of
                tell(cell, of)
    for bench in sorted(path.name for path in (builds[1] / "bench/kernels").glob("*_bench")):
        of = ratios(in_turn(builds, given.rounds, functools.partial(benched, bench)), lambda seconds: seconds)
        found["kernels"][bench] = of
        tell(bench, of)
    everything = [ratio for kind in found.values() for of in kind.values() for ratio in of.values()]
    print(f"all: median {statistics.median(everything):.3f} of {len(everything)}")
    print(*(different or ["bytes and messages: the same, all of them"]), sep="\n")
    if given.out:
        given.out.write_text(json.dumps({"rounds": given.rounds, **found}, indent=2) + "\n", encoding="utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
