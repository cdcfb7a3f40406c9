#!/usr/bin/env python3
"""Measures `balanced` over MPI between eight hosts that are network namespaces with links of 200 Mbit/s. Needs root.

    bench/cluster/cluster.py DATA [--rounds 3] [--repeat 5] [--nice 0] [--out bench/results/cluster.json]

DATA is a folder with lm1b_tokens.npy (token ids, 1-D) and criteo_fields.npy (categorical fields, 2-D). Measures:

- seconds over bytes / rate, for several chunk and window sizes
- MPI_Alltoallv with the same bytes
- the bytes that the interfaces count
- links without a rate limit

Variants run alternately, `--rounds` times; the figure is the median of the rounds' medians. Prints tables and writes one JSON file;
docs/performance/cluster.md explains each figure. A negative --nice reduces the influence of other work on the machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from hosts import Hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

WORKERS = 8
RATE_BPS = 200_000_000
SMALL_SOCKETS = [("btl_tcp_sndbuf", 16384), ("btl_tcp_rcvbuf", 16384)]
# name: (options of compare, parameters of OpenMPI)
VARIANTS = {
    "default": ([], []),
    "sockets of 16 KiB": ([], SMALL_SOCKETS),
    **{f"--chunk {size}KiB": (["--chunk", f"{size}KiB"], []) for size in (4, 8, 32, 64)},
    **{f"--window {count}": (["--window", count], []) for count in (7, 21, 28, 56)},
}
UNSHAPED = ("default", "sockets of 16 KiB", "--window 28", "--window 56", "--chunk 64KiB")


def processor_ticks():
    """Returns the processors' (total, idle) ticks since the machine started."""
    ticks = [int(word) for word in pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


class Bench:
    def __init__(self, hosts, given, folder):
        self.hosts, self.given = hosts, given
        self.program = given.build.resolve() / "bin/sparsesync"
        self.alltoallv_program = given.build.resolve() / "bench/cluster/alltoallv"
        self.folder = pathlib.Path(folder)

    def make_trace(self, name, *words):
        path = self.folder / name
        subprocess.run([str(self.program), "trace", *map(str, words), "--width", "128", "--workers", str(WORKERS),
                        "--out", str(path)], check=True, capture_output=True)
        return path

    def compare(self, trace, variant, repeat):
        """Runs compare for `balanced` alone. Returns its report and adds the share of processor time that was idle."""
        options, parameters = VARIANTS[variant]
        before = processor_ticks()
        text = self.hosts.mpirun(self.program, "compare", trace, "--transport", "mpi", "--schemes", "balanced",
                                 "--repeat", repeat, "--json", "-", *options, mca=parameters)
        after = processor_ticks()
        report = json.loads(text)
        (scheme,) = report["schemes"]
        if not scheme["correct"]:
            raise RuntimeError(f"{variant}: the result is not correct")
        scheme["processors_idle"] = (after[1] - before[1]) / (after[0] - before[0])
        return report

    def variants(self, trace, names):
        """Runs the variants alternately. Returns {variant: reports}."""
        reports = {name: [] for name in names}
        for _ in range(self.given.rounds):
            for name in names:
                reports[name].append(self.compare(trace, name, self.given.repeat))
        return reports

    def alltoallv(self, trace):
        # Each round has a median of `repeat` steps. One run of the program makes all rounds.
        text = self.hosts.mpirun(self.alltoallv_program, trace, self.given.rounds, self.given.repeat)
        figures = json.loads(text)
        for name in ("balanced", "alltoallv", "transport"):
            figures[f"{name}_median"] = statistics.median(figures[f"{name}_seconds"])
        figures["alltoallv_over_balanced"] = figures["alltoallv_median"] / figures["balanced_median"]
        wire = figures["bytes_sent_max"] * 8 / RATE_BPS
        figures["transport_over_bytes_by_rate"] = figures["transport_median"] / wire
        figures["balanced_over_bytes_by_rate"] = figures["balanced_median"] / wire
        return figures

    def counted(self, trace):
        """Compares the bytes per step that the busiest interface counts with the bytes that compare reports."""
        few, many = 1, 1 + self.given.repeat
        seen = []
        for repeat in (few, many):
            before = self.hosts.counters()
            report = self.compare(trace, "default", repeat)
            seen.append([(a[0] - b[0], a[1] - b[1]) for a, b in zip(self.hosts.counters(), before, strict=True)])
        steps = (many - few) * report["steps"]
        sent = max((b[0] - a[0]) / steps for a, b in zip(*seen, strict=True))
        received = max((b[1] - a[1]) / steps for a, b in zip(*seen, strict=True))
        (scheme,) = report["schemes"]
        return {
            "interface_bytes_sent_max": sent,
            "interface_bytes_received_max": received,
            "bytes_sent_max": scheme["bytes_sent_max"],
            "bytes_received_max": scheme["bytes_received_max"],
            "sent_ratio": sent / scheme["bytes_sent_max"],
            "received_ratio": received / scheme["bytes_received_max"],
        }


def summary(reports, rate_bps):
    """Summarizes one variant on one trace."""
    schemes = [report["schemes"][0] for report in reports]
    median = statistics.median(scheme["seconds_median"] for scheme in schemes)
    least = min(scheme["seconds_min"] for scheme in schemes)
    figures = {
        "seconds_median": median,
        "seconds_min": least,
        "seconds_medians": [scheme["seconds_median"] for scheme in schemes],
        "bytes_busiest": schemes[0]["bytes_busiest"],
        "processors_idle": statistics.median(scheme["processors_idle"] for scheme in schemes),
    }
    if rate_bps:
        wire = schemes[0]["bytes_busiest"] * 8 / rate_bps
        figures |= {"over_bytes_by_rate": median / wire, "over_bytes_by_rate_min": least / wire}
    return figures


def say(trace, variant, figures):
    over = "".join(f"{figures[key]:>9.3f}" for key in ("over_bytes_by_rate", "over_bytes_by_rate_min") if key in figures)
    print(f"{trace:<8}{variant:<20}{figures['seconds_median']:>9.4f}{over}", flush=True)


def measure(bench, traces):
    parts = {"shaped": {}, "alltoallv": {}, "counters": {}, "unshaped": {}}
    origin = {}
    bench.hosts.shape(RATE_BPS)
    for name, trace in traces.items():
        figures = parts["alltoallv"][name] = bench.alltoallv(trace)
        print(f"{name}: MPI_Alltoallv takes {figures['alltoallv_over_balanced']:.2f} x the time of balanced; over "
              f"bytes / rate: balanced {figures['balanced_over_bytes_by_rate']:.3f}, the transport alone "
              f"{figures['transport_over_bytes_by_rate']:.3f}", flush=True)
    print(f"{'trace':<8}{'variant':<20}{'seconds':>9}{'x wire':>9}{'min':>9}")
    for name, trace in traces.items():
        dropped = bench.hosts.dropped()
        reports = bench.variants(trace, list(VARIANTS))
        origin = reports["default"][0]["provenance"]
        parts["shaped"][name] = {each: summary(reports[each], RATE_BPS) for each in VARIANTS}
        parts["shaped"][name]["packets_dropped"] = bench.hosts.dropped() - dropped
        for each in VARIANTS:
            say(name, each, parts["shaped"][name][each])
    bench.hosts.shape(RATE_BPS, cut=True)
    for name, trace in traces.items():
        figures = parts["counters"][name] = bench.counted(trace)
        print(f"{name}: interfaces over compare: sent {figures['sent_ratio']:.4f}, "
              f"received {figures['received_ratio']:.4f}", flush=True)
    bench.hosts.shape(None)
    for name, trace in traces.items():
        reports = bench.variants(trace, UNSHAPED)
        parts["unshaped"][name] = {each: summary(reports[each], None) for each in UNSHAPED}
        for each in UNSHAPED:
            say(name, f"{each}, unshaped", parts["unshaped"][name][each])
    return parts, origin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/cluster.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("cluster: network namespaces need root")
    tokens, fields = given.data / "lm1b_tokens.npy", given.data / "criteo_fields.npy"
    for file in (tokens, fields):
        if not file.exists():
            sys.exit(f"cluster: {file} does not exist; pass the folder that contains it")
    os.nice(given.nice)
    with Hosts(WORKERS) as hosts, tempfile.TemporaryDirectory() as folder:
        bench = Bench(hosts, given, folder)
        traces = {
            "lm1b": bench.make_trace("lm1b", "from-tokens", tokens, "--rows", 793471, "--batch", 2560, "--sampled", 8192),
            "criteo": bench.make_trace("criteo", "from-fields", fields, "--batch", 1024),
        }
        parts, origin = measure(bench, traces)
        report = {
            "workers": WORKERS,
            "network": hosts.network(RATE_BPS),
            "rounds": given.rounds,
            "repeat": given.repeat,
            **parts,
            "provenance": {key: value for key, value in origin.items() if key != "trace"}
            | {"nice": given.nice, "mpi": subprocess.run(["mpirun", "--version"], capture_output=True, text=True,
                                                          check=True).stdout.splitlines()[0]},
        }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, report)
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
