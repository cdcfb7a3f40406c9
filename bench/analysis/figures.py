#!/usr/bin/env python3
"""Measures the speed of `sparsesync profile` and `plan`, and the accuracy of `calibrate` and `plan`.

    bench/analysis/figures.py DATA [--program build/release/bin/sparsesync] [--out bench/results/analysis.json] [--small]

DATA is a folder with lm1b_tokens.npy (token ids, 1-D). Prints four tables:

- Seconds and memory of profile and plan on a trace of 16 workers and 1,000 steps. Each worker touches 10,000 rows per step. The trace
  takes 1.3 GB in the folder for temporary files.

- Rates and latencies that calibrate measures, relative to those of simulated links.

- Pairs of consecutive calibrations over MPI on this machine, and whether their confidence intervals overlap.

- Densification that plan extrapolates from 8 workers, beside the measured one, for up to 64 workers.

--small reduces everything, to test that the benchmark runs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

RATES = {"50mbit": 50e6, "200mbit": 200e6, "1gbit": 1e9}
LATENCIES = {"50us": 50e-6, "200us": 200e-6, "1ms": 1e-3}


class Bench:
    def __init__(self, given, folder):
        self.given, self.folder = given, pathlib.Path(folder)

    def run(self, *arguments, under=()):
        """Runs the program. Returns its output, the seconds that it took, and its peak memory in bytes."""
        command = [*map(str, under), str(self.given.program), *map(str, arguments)]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            output = process.stdout.read()
            errors = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"figures: {' '.join(command)}: {errors}")
        return output, time.monotonic() - began, usage.ru_maxrss * 1024

    def speed(self):
        steps = 20 if self.given.small else 1000
        shape = ["--rows", 1_000_000, "--width", 32, "--density", 0.01, "--zipf", 1.1, "--workers", 16, "--steps", steps]
        self.run("trace", "synthetic", *shape, "--seed", 1, "--out", "T", "--force")
        found = {"workers": 16, "steps": steps, "rows_of_a_worker": 10_000}
        commands = {
            "profile": ["profile", "T"],
            "plan": ["plan", "T", "--workers", "2..1024", "--rate", "25gbit", "--latency", "10us"],
        }
        print(f"{'command':<10}{'seconds (median)':>18}{'memory, MB':>12}")
        for name, command in commands.items():
            runs = [self.run(*command)[1:] for _ in range(self.given.repeat)]
            seconds = statistics.median(run[0] for run in runs)
            memory = max(run[1] for run in runs)
            found[name] = {"seconds": seconds, "memory_bytes": memory}
            print(f"{name:<10}{seconds:>18.2f}{memory / 1e6:>12.0f}", flush=True)
        return found

    def calibrated(self, *options, under=()):
        self.run("calibrate", *options, "--out", "N.json", "--force", under=under)
        return json.loads((self.folder / "N.json").read_text())

    def known_links(self):
        print(f"\n{'rate':<10}{'latency':>8}{'found / rate':>14}{'found / latency':>17}{'under load':>12}")
        found = []
        for rate in ["200mbit"] if self.given.small else RATES:
            for latency in ["200us"] if self.given.small else LATENCIES:
                repeat = 2 if self.given.small else 9
                link = ["--transport", "local", "--workers", 8, "--rate", rate, "--latency", latency, "--repeat", repeat]
                inter = self.calibrated(*link)["links"]["inter"]
                row = {
                    "rate_bps": RATES[rate],
                    "latency_s": LATENCIES[latency],
                    "rate_ratio": inter["rate_bps"] / RATES[rate],
                    "latency_ratio": inter["latency_s"] / LATENCIES[latency],
                    "rate_ratio_loaded": inter["loaded"]["rate_bps"] / RATES[rate],
                }
                found.append(row)
                print(
                    f"{rate:<10}{latency:>8}{row['rate_ratio']:>14.3f}{row['latency_ratio']:>17.3f}"
                    f"{row['rate_ratio_loaded']:>12.3f}",
                    flush=True,
                )
        return found

    def twice_over_mpi(self):
        workers = 4
        under = [ROOT / "cmake/mpirun.sh", "-np", workers]
        print(f"\n{'MPI, pair':<12}{'latency agrees':>15}{'rate agrees':>13}   latency, us, and rate, Gbit/s: 95% intervals")
        found = []
        for pair in range(1 if self.given.small else 10):
            both = [self.calibrated("--transport", "mpi", under=under)["links"]["intra"] for _ in range(2)]
            agree = []
            for which in (0, 1):
                (a, b), (c, d) = both[0]["ci"][which], both[1]["ci"][which]
                agree.append(max(a, c) <= min(b, d))
            row = {"latency_agrees": agree[0], "rate_agrees": agree[1], "ci": [link["ci"] for link in both]}
            found.append(row)
            shown = "  ".join(
                f"{1e6 * low:.0f}-{1e6 * high:.0f} {slow / 1e9:.2f}-{fast / 1e9:.2f}"
                for (low, high), (slow, fast) in row["ci"]
            )
            print(f"{pair + 1:<12}{'yes' if agree[0] else 'NO':>15}{'yes' if agree[1] else 'NO':>13}   {shown}", flush=True)
        return found

    def growth(self):
        tokens = self.given.data.resolve() / "lm1b_tokens.npy"
        if not tokens.exists():
            sys.exit(f"figures: {tokens} does not exist; pass the folder that contains it")
        lm1b = ["from-tokens", tokens, "--rows", 793471, "--width", 32, "--workers", 64, "--batch", 2494]
        self.run("trace", *lm1b, "--out", "T", "--force")
        options = ["--workers", "8,16,32,64", "--rate", "25gbit", "--latency", "10us", "--json", "-"]
        planned = json.loads(self.run("plan", "T", *options)[0])
        print(f"\n{'LM1B, workers':<15}{'densification':>15}{'told from 8':>13}{'ratio':>8}")
        found = []
        for each in planned["workers"]:
            told = each["densification_from_an_eighth"]
            found.append({"workers": each["n"], "densification": each["densification"], "told_from_8": told})
            ratio = told / each["densification"]
            print(f"{each['n']:<15}{each['densification']:>15.3f}{told:>13.3f}{ratio:>8.3f}", flush=True)
        return found, planned["provenance"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/sparsesync")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/analysis.json")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    given.program = given.program.resolve()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given, folder)
        found = {"speed": bench.speed(), "known_links": bench.known_links(), "twice_over_mpi": bench.twice_over_mpi()}
        found["growth"], found["provenance"] = bench.growth()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, found)
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
