#!/usr/bin/env python3
"""Measures `balanced` on real index data relative to the link's rate and to the partitioned ideal, and ranks all schemes on links
where bytes dominate.

    bench/schemes/link_efficiency.py DATA [--program build/release/bin/sparsesync] [--out bench/results/link_efficiency.json]

DATA is a folder with lm1b_tokens.npy (token ids, 1-D) and criteo_fields.npy (categorical fields, 2-D). Writes one JSON file with
every report of `sparsesync compare` and prints a table. Times are medians of `--repeat` runs.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

RATE = "200mbit"
LATENCY = "50us"

# Cells in which all schemes are compared: trace, workers, width. 64 results of width 128 take more than 24 GiB.
CELLS = [
    *[(name, workers, 128) for name in ("lm1b", "lm1b_sampled", "criteo") for workers in (8, 16)],
    ("lm1b_sampled", 64, 32),
]
MEMORY = 16 << 30  # bytes for all workers together: 64 copies of the dense schemes do not fit


class Bench:
    def __init__(self, given, folder):
        self.given, self.trace = given, pathlib.Path(folder) / "trace"
        lm1b = ["from-tokens", given.data / "lm1b_tokens.npy", "--rows", 793471]
        self.inputs = {
            "lm1b": [*lm1b, "--batch", 2560],
            "lm1b_sampled": [*lm1b, "--batch", 2494, "--sampled", 8192],
            "criteo": ["from-fields", given.data / "criteo_fields.npy", "--batch", 1024],
        }
        for _, file, *_ in self.inputs.values():
            if not file.exists():
                sys.exit(f"link_efficiency: {file} does not exist; pass the folder that contains it")

    def run(self, *arguments):
        command = [str(self.given.program), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"link_efficiency: {result.stderr}")
        return result.stdout

    def compare(self, name, workers, width, *options):
        self.run("trace", *self.inputs[name], "--width", width, "--workers", workers, "--out", self.trace, "--force")
        report = json.loads(self.run("compare", self.trace, "--json", "-", *options))
        report["provenance"]["trace"] = name
        for scheme in report["schemes"]:
            assert "skipped" in scheme or scheme["correct"], scheme
        return report

    def efficiency(self, name, workers, width, shaped):
        """Prints a row of the first table: `balanced` on links with or without a rate limit."""
        options = ["--repeat", self.given.repeat, "--rate", RATE, "--latency", LATENCY] if shaped else ["--repeat", 1]
        report = self.compare(name, workers, width, "--schemes", "balanced", *options)
        (scheme,) = report["schemes"]
        ideal = scheme["bytes_busiest"] / report["partitioned_ideal_bytes"]
        (choice,) = scheme["tensors"]
        grid = f"{choice['row_groups']}x{choice['column_slices']}"
        seconds = wire = "-"
        if shaped:
            seconds = f"{scheme['seconds_median']:.4f}"
            least = scheme["bytes_busiest"] * 8 / report["network"]["rate_bps"]
            wire = f"{scheme['seconds_median'] / least:.3f}"
        print(f"{name:<8}{workers:>8}{width:>7}{ideal:>9.4f}{grid:>8}{seconds:>9}{wire:>14}", flush=True)
        return report

    def all_schemes(self, name, workers, width):
        """Prints a row of the second table: the four fastest schemes, on the virtual clock."""
        link = ["--clock", "virtual", "--rate", RATE, "--latency", LATENCY]
        report = self.compare(name, workers, width, "--repeat", 3, "--memory", MEMORY // workers, *link)
        ran = [scheme for scheme in report["schemes"] if "skipped" not in scheme]
        ran.sort(key=lambda scheme: scheme["seconds_median"])
        columns = [f"{scheme['name']} {scheme['seconds_median']:.4f}" for scheme in ran[:4]]
        print(f"{name:<14}{workers:>8}{width:>7}  " + "".join(f"{column:<28}" for column in columns), flush=True)
        return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/sparsesync")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/link_efficiency.json")
    parser.add_argument("--repeat", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given, folder)
        print(f"{'trace':<8}{'workers':>8}{'width':>7}{'x ideal':>9}{'grid':>8}{'seconds':>9}{'x bytes/rate':>14}")
        reports = []
        for name in ("lm1b", "criteo"):
            # With a rate limit, eight workers share two cores. Without one, only bytes are compared.
            reports += [bench.efficiency(name, 8, width, True) for width in (128, 32)]
            reports += [bench.efficiency(name, n, width, False) for n in (16, 5, 7, 12) for width in (32, 128)]
        print(f"\n{'trace':<14}{'workers':>8}{'width':>7}  the first of all schemes, seconds")
        reports += [bench.all_schemes(*cell) for cell in CELLS]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, reports)
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
