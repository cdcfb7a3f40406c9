#!/usr/bin/env python3
"""Compares two builds: checks that they send the same bytes, and measures the ratio of their times.

    bench/side_by_side.py OLD NEW [--data DATA] [--pairs 5] [--only compare|kernels] [--worst-ratio 1.01] [--json FILE]

OLD and NEW are release builds, or checkouts that have one in build/release. The traces are synthetic; with DATA (a folder with
lm1b_tokens.npy and criteo_fields.npy) there are also two real ones. Both programs compare all schemes on each trace, on the virtual
clock, and both run every kernel benchmark. OLD runs first in one pair, NEW first in the next. The ratio is the median over pairs of
NEW / OLD. Ratios of adjacent runs are used because absolute times on a shared machine are not reproducible.
Exit status 1 if a scheme's bytes or messages differ, or if a scheme's median ratio exceeds --worst-ratio.
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from results_file import write_results

# These keys of a scheme in the JSON of `compare` must be equal in both builds.
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
    """Returns {name: arguments of `sparsesync trace`}."""
    made = {name: ["synthetic", *words, "--seed", 5] for name, words in SYNTHETIC.items()}
    if data:
        lm1b = ["from-tokens", data / "lm1b_tokens.npy", "--rows", 793471, "--batch", 2560]
        made["lm1b"] = [*lm1b, "--width", 128]
        made["criteo"] = ["from-fields", data / "criteo_fields.npy", "--batch", 1024, "--width", 32]
    return made


def compared(trace, builds, build):
    """Returns {scheme: figures} and adds the build's provenance to `builds`. Leaves out `auto`, whose choice and bytes depend on times."""
    report = json.loads(run([build / "bin/sparsesync", "compare", trace, *LINK, "--repeat", 3, "--json", "-"]))
    builds.setdefault(str(build), report["provenance"])
    figures = {scheme["name"]: scheme for scheme in report["schemes"] if "skipped" not in scheme}
    assert all(scheme["correct"] for scheme in figures.values())
    return {name: scheme for name, scheme in figures.items() if name != "auto"}


def benched(bench, build):
    """Returns {benchmark: seconds}."""
    words = [build / "bench/kernels" / bench, "--benchmark_format=json", "--benchmark_min_time=0.05"]
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
    return {
        each["name"]: each["cpu_time"] * units[each["time_unit"]]
        for each in json.loads(run(words))["benchmarks"]
        if not each.get("error_occurred") and each["cpu_time"] > 0
    }


def in_turn(builds, rounds, measure):
    """Measures both builds in each round. Returns a list of pairs (old build, new build)."""
    results = []
    for number in range(rounds):
        # Keyed by index, not by path: a build may be compared with itself.
        of = {place: measure(builds[place]) for place in ((0, 1) if number % 2 == 0 else (1, 0))}
        results.append((of[0], of[1]))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def ratios(pairs, seconds):
    """Returns {name: median of the rounds' ratios}. `seconds` converts one measurement to {name: seconds}."""
    rounds = [(seconds(old), seconds(new)) for old, new in pairs]
    names = set.intersection(*[set(of) for pair in rounds for of in pair])
    return {name: statistics.median(new[name] / old[name] for old, new in rounds) for name in sorted(names)}


def print_slowest(name, of):
    print(f"{name}: median {statistics.median(of.values()):.3f} of {len(of)}")
    worst = sorted(of.items(), key=lambda item: -item[1])
    print("    slowest beside the old: " + ", ".join(f"{each} {ratio:.3f}" for each, ratio in worst[:4]), flush=True)


def differences(cell, pairs):
    """Returns a line for each scheme and key whose counts differ."""
    found = []
    for old, new in pairs:
        if set(old) != set(new):
            found.append(f"{cell}: {', '.join(sorted(set(old) ^ set(new)))} in one build alone")
        found += [
            f"{cell}, {scheme}: {key} {old[scheme][key]} and {new[scheme][key]}"
            for scheme in sorted(set(old) & set(new))
            for key in COUNTED
            if old[scheme][key] != new[scheme][key]
        ]
    return list(dict.fromkeys(found))


def by_scheme(cells):
    """Returns {scheme: median of its ratios over all cells}."""
    ratios_of = {}
    for of in cells.values():
        for scheme, ratio in of.items():
            ratios_of.setdefault(scheme, []).append(ratio)
    return {scheme: statistics.median(of) for scheme, of in sorted(ratios_of.items())}


def print_table(schemes, different):
    print(f"{'scheme':20} {'time, new / old':>16} {'bytes':>10}")
    for scheme, ratio in schemes.items():
        same = not any(f", {scheme}: " in line for line in different)
        print(f"{scheme:20} {ratio:16.3f} {'equal' if same else 'DIFFERENT':>10}")


def folder_of(path):
    """Returns the build at the path: the path itself, or its build/release."""
    for build in (path, path / "build/release"):
        if (build / "bin/sparsesync").is_file():
            return build.resolve()
    sys.exit(f"side_by_side: {path}: neither a build nor a checkout with build/release: bin/sparsesync is missing")


def compare_schemes(builds, data, pairs_wanted):
    """Runs `compare` of both builds. Returns the ratios by trace, the differences of counts, and the provenance of the builds."""
    cells, different, provenance = {}, [], {}
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        for name, words in traces(data).items():
            for workers in WORKERS:
                run([builds[1] / "bin/sparsesync", "trace", *words, "--workers", workers, "--out", trace, "--force"])
                pairs = in_turn(builds, pairs_wanted, functools.partial(compared, trace, provenance))
                cell = f"{name}, {workers} workers"
                different += differences(cell, pairs)
                cells[cell] = ratios(pairs, lambda figures: {each: figures[each]["seconds_median"] for each in figures})
                print_slowest(cell, cells[cell])
    return cells, different, provenance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--pairs", "--rounds", type=int, default=5, help="measurements of each build (5)")
    parser.add_argument("--only", choices=["compare", "kernels"])
    parser.add_argument("--worst-ratio", type=float, help="the largest accepted median ratio of a scheme's times")
    parser.add_argument("--json", "--out", type=pathlib.Path, help="write the result to this file")
    given = parser.parse_args()
    if given.pairs < 1:
        parser.error("--pairs: 1 or more")
    builds = [folder_of(given.old), folder_of(given.new)]
    cells, different, provenance, kernels = {}, [], {}, {}
    if given.only != "kernels":
        cells, different, provenance = compare_schemes(builds, given.data and given.data.resolve(), given.pairs)
    if given.only != "compare":
        for bench in sorted(path.name for path in (builds[1] / "bench/kernels").glob("*_bench")):
            kernels[bench] = ratios(in_turn(builds, given.pairs, functools.partial(benched, bench)), lambda seconds: seconds)
            print_slowest(bench, kernels[bench])
    schemes = by_scheme(cells)
    everything = [ratio for kind in (cells, kernels) for of in kind.values() for ratio in of.values()]
    if schemes:
        print_table(schemes, different)
        print(*(different or ["bytes and messages: all equal"]), sep="\n")
    print(f"all: median {statistics.median(everything):.3f} of {len(everything)}")
    slow = [] if given.worst_ratio is None else [scheme for scheme, ratio in schemes.items() if ratio > given.worst_ratio]
    if slow:
        print(f"slower than {given.worst_ratio}: {', '.join(slow)}")
    if given.json:
        found = {"pairs": given.pairs, "worst_ratio": given.worst_ratio, "schemes": schemes, "compare": cells, "kernels": kernels}
        found |= {"differences": different, "slower": slow, "provenance": [provenance.get(str(build), {}) for build in builds]}
        write_results(given.json, found)
    return 1 if different or slow else 0


if __name__ == "__main__":
    sys.exit(main())
