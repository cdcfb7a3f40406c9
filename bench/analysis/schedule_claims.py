#!/usr/bin/env python3
"""Simulates the claims of the papers on schedules with `sparsesync simulate`, and measures how long a grid of all models takes.

    bench/analysis/schedule_claims.py [--program build/release/bin/sparsesync] [--out bench/results/schedules.json]

Prints the tables of docs/developers/schedules.md, line by line as they appear there. Models are those of the program's build; their
times are computed from data sheets. Start-up times and rates are those that the papers' authors fitted (see the same document).
Nothing is fitted to a claim.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

PAPER_MODELS = ["resnet50", "densenet201", "inception_v4", "bert_base", "bert_large"]
# Start-up time of one message. MG-WFBP's authors fitted the start-up of an all-reduce on a ring of 16 workers: 2 (n - 1) messages.
START_10G, START_56G = 9.081e-4 / 30, 2.358e-4 / 30
# All-reduces that the authors fitted: start-up in seconds, seconds per byte.
FITTED = {
    ("10 Gbit/s", 8): (5.230e-4, 8.571e-10),
    ("10 Gbit/s", 16): (9.081e-4, 7.396e-10),
    ("10 Gbit/s", 64): (7.043e-3, 9.643e-10),
    ("56 Gbit/s", 8): (9.754e-5, 3.057e-10),
    ("56 Gbit/s", 16): (2.358e-4, 4.059e-10),
    ("56 Gbit/s", 32): (4.063e-4, 4.907e-10),
    ("56 Gbit/s", 64): (8.063e-4, 5.889e-10),
}
GRID_WORKERS = [2**i for i in range(1, 13)]
GRID_NETWORKS = [("1gbit", "50us"), ("10gbit", "30us"), ("25gbit", "20us"), ("100gbit", "8us")]


class Program:
    def __init__(self, path, folder):
        self.path = path
        self.models = path.resolve().parents[1] / "models"
        self.folder = folder
        self.provenance = {}  # set by the last simulation

    def simulate(self, model, workers, *options):
        """Returns {workers: {schedule: result}}."""
        words = [self.path, "simulate", model, "--workers", ",".join(map(str, workers)), *options, "--json", "-"]
        done = subprocess.run([str(each) for each in words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"schedule_claims: {done.stderr}")
        found = {}
        told = json.loads(done.stdout)
        self.provenance = {key: value for key, value in told["provenance"].items() if key not in ("model", "network", "seed")}
        for each in told["results"]:
            found.setdefault(each["workers"], {})[each["schedule"]] = each
        return found

    def of_layers(self, forward, backward, sizes, workers, *options):
        layers = [
            {"name": f"layer {i + 1}", "forward_s": f, "backward_s": b, "bytes": m}
            for i, (f, b, m) in enumerate(zip(forward, backward, sizes, strict=True))
        ]
        path = pathlib.Path(self.folder) / "model.json"
        path.write_text(json.dumps({"name": "layers", "layers": layers}))
        return self.simulate(path, workers, *options)


def affine(start, rate):
    return ("--affine", f"{start!r},{rate!r}")


def ms(seconds):
    return f"{1e3 * seconds:.1f}"


def times(ratio):
    return f"{ratio:.2f}"


def fitted_all_reduces(program):
    """Simulates MG-WFBP with the all-reduce times that its authors fitted."""
    yield "| ResNet-50 | workers | WFBP, ms | merge all | MG-WFBP | exact | MG-WFBP over WFBP | over merge all |"
    yield "|---|---|---|---|---|---|---|---|"
    for (network, workers), (start, rate) in FITTED.items():
        found = program.simulate(program.models / "resnet50.json", [workers], *affine(start, rate))[workers]
        seconds = {name: each["iteration_s"] for name, each in found.items()}
        yield (
            f"| {network} | {workers} | {ms(seconds['wfbp'])} | {ms(seconds['merge_all'])} | {ms(seconds['mg_wfbp'])} | "
            f"{ms(seconds['mg_wfbp_exact'])} | {times(seconds['wfbp'] / seconds['mg_wfbp'])} | "
            f"{times(seconds['merge_all'] / seconds['mg_wfbp'])} |"
        )


def scaling(program):
    """Simulates MG-WFBP with 4 to 2,048 workers, on rings and on double binary trees of 10 Gbit/s."""
    yield "| ResNet-50, 10 Gbit/s | workers | WFBP, ms | merge all | MG-WFBP | exact | dear | auto |"
    yield "|---|---|---|---|---|---|---|---|"
    per_byte = 8 / 10e9
    model = program.models / "resnet50.json"
    for name, start_of, rate_of in (
        ("ring", lambda n: 2 * (n - 1) * START_10G, lambda n: 2 * (n - 1) / n * per_byte),
        ("double binary trees", lambda n: 2 * math.log2(n) * START_10G, lambda n: per_byte),
    ):
        for workers in (4, 16, 64, 256, 1024, 2048):
            found = program.simulate(model, [workers], *affine(start_of(workers), rate_of(workers)))[workers]
            cells = [ms(found[each]["iteration_s"]) for each in ("wfbp", "merge_all", "mg_wfbp", "mg_wfbp_exact", "dear", "auto")]
            yield f"| {name} | {workers} | {' | '.join(cells)} |"


def dear(program):
    """Simulates DeAR with its five models on 64 workers."""
    yield "| 64 workers | model | per layer, ms | 25 MiB | MG-WFBP | best of these | dear, 25 MiB | dear, planned | gain of dear |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for rate, start in ((10, START_10G), (100, START_56G)):
        link = ("--rate", f"{rate}gbit", "--latency", f"{start * 1e6:.4g}us")
        for model in PAPER_MODELS:
            path = program.models / f"{model}.json"
            best = program.simulate(path, [64], *link)[64]
            full = program.simulate(path, [64], *link, "--bucket", "25MiB", "--schedules", "lazy,dear")[64]
            others = {
                "wfbp": best["wfbp"]["iteration_s"],
                "lazy": full["lazy"]["iteration_s"],
                "mg_wfbp": best["mg_wfbp"]["iteration_s"],
            }
            least = min(others.values())
            gain = least / best["dear"]["iteration_s"] - 1
            cells = [f"{rate} Gbit/s", json.loads(path.read_text())["name"], *map(ms, others.values()), ms(least)]
            yield (
                f"| {' | '.join(cells)} | "
                f"{ms(full['dear']['iteration_s'])} | {ms(best['dear']['iteration_s'])} | {round(100 * gain)}% |"
            )


def gradient_flow(program):
    """Adds GradientFlow's parts one by one, starting with an all-reduce in f32 per layer: 8 to 512 workers at 56 Gbit/s."""
    yield (
        "| 56 Gbit/s | workers | per layer, f32, ms | lazy, f32 | lazy, f16 | lazy, f16, 10% of chunks | the last over the first | "
        "speed-up per layer | lazy | f16 | of all three |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    link = ("--rate", "56gbit", "--latency", f"{START_56G * 1e6:.4g}us")
    workers = [2**i for i in range(3, 10)]
    half, chunks = ("--wire", "f16"), ("--coarse-grained", "0.1")
    for model in ("alexnet", "resnet50"):
        path = program.models / f"{model}.json"
        ways = [
            {n: each["wfbp"] for n, each in program.simulate(path, workers, *link, "--schedules", "wfbp").items()},
            *(
                {n: each["lazy"] for n, each in program.simulate(path, workers, *link, "--schedules", "lazy", *words).items()}
                for words in ((), half, (*half, *chunks))
            ),
        ]
        for n in workers:
            steps = [way[n] for way in ways]
            speedups = [f"{n * each['compute_s'] / each['iteration_s']:.1f}" for each in steps]
            cells = [json.loads(path.read_text())["name"], str(n), *(ms(each["iteration_s"]) for each in steps)]
            yield f"| {' | '.join(cells)} | {times(steps[0]['iteration_s'] / steps[-1]['iteration_s'])} | {' | '.join(speedups)} |"


def closed_form(program):
    """Simulates many identical layers. The forward pass takes half as long as the backward pass. Rows vary the ratio of the
    communication time to the time of both passes.
    """
    yield "| crosses / passes | wfbp, simulated | by the form | dear, simulated | by the form | wfbp / dear | by the forms |"
    yield "|---|---|---|---|---|---|---|"
    layers = 400
    for ratio in (0.25, 0.5, 1.0, 1.5, 2.0):
        found = program.of_layers(
            [1 / 3 / layers] * layers, [2 / 3 / layers] * layers, [1] * layers, [8],
            *affine(0, ratio / layers), "--schedules", "wfbp,dear", "--bucket", "1B",
        )[8]  # fmt: skip
        wfbp, of_dear = found["wfbp"]["iteration_s"], found["dear"]["iteration_s"]
        told_wfbp = 1 / 3 + max(2 / 3, ratio)
        told_dear = max(1 / 3, ratio / 2) + max(2 / 3, ratio / 2)
        yield (
            f"| {ratio:g} | {wfbp:.3f} | {told_wfbp:.3f} | {of_dear:.3f} | {told_dear:.3f} | {wfbp / of_dear:.3f} | "
            f"{told_wfbp / told_dear:.3f} |"
        )


def greedy_is_not_optimal(program):
    """Simulates three layers, with times in seconds and in seconds per byte."""
    yield "| layers 1, 2, 3 | backward, s | crosses alone, s | greedy's buckets | takes | exact buckets | takes |"
    yield "|---|---|---|---|---|---|---|"
    start, backward, sizes = COUNTEREXAMPLE
    found = program.of_layers([0] * len(sizes), backward, sizes, [8], *affine(start, 1), "--schedules", "mg_wfbp,mg_wfbp_exact")[8]

    def buckets(name):
        return ", ".join("+".join(str(i + 1) for i in range(first, last + 1)) for first, last in found[name]["buckets"])

    yield (
        f"| an all-reduce takes {start} s and 1 s a byte | {', '.join(map(str, backward))} | "
        f"{', '.join(str(start + each) for each in sizes)} | {buckets('mg_wfbp')} | {found['mg_wfbp']['iteration_s']:g} s | "
        f"{buckets('mg_wfbp_exact')} | {found['mg_wfbp_exact']['iteration_s']:g} s |"
    )


# Found by a search through all cases of three layers with small whole numbers.
COUNTEREXAMPLE = (4, [4, 3, 1], [1, 1, 3])


def grid(program):
    """Simulates all models, numbers of workers, networks and schedules. Reports how much slower than the exact schedule others are, and
    for which case.
    """
    worst = dict.fromkeys(("wfbp", "merge_all", "mg_wfbp"), (1.0, ""))
    points = 0
    began = time.perf_counter()
    for path in sorted(program.models.glob("*.json")):
        for rate, latency in GRID_NETWORKS:
            for workers, found in program.simulate(path, GRID_WORKERS, "--rate", rate, "--latency", latency).items():
                points += 1
                exact = found["mg_wfbp_exact"]["iteration_s"]
                for name, before in worst.items():
                    ratio = found[name]["iteration_s"] / exact
                    if ratio < 1 - 1e-9:
                        sys.exit(f"schedule_claims: {name} is faster than the exact schedule: {path.stem}, {workers}, {rate}")
                    if ratio > before[0]:
                        worst[name] = (ratio, f"{path.stem}, {workers} workers, {rate}")
                if found["auto"]["iteration_s"] > min(each["iteration_s"] for each in found.values()) * (1 + 1e-9):
                    sys.exit(f"schedule_claims: auto is not the fastest schedule: {path.stem}, {workers}, {rate}")
    seconds = time.perf_counter() - began
    table = ["| over exact, at most | of so many points | where |", "|---|---|---|"]
    table += [f"| {name}: {ratio:.2f} times | {points} | {where} |" for name, (ratio, where) in worst.items()]
    return table, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/sparsesync")
    parser.add_argument("--out", type=pathlib.Path, help="write the tables and the seconds of the grids to this JSON file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(given.program, folder)
        parts = (fitted_all_reduces, scaling, dear, gradient_flow, closed_form, greedy_is_not_optimal)
        tables = {part.__name__: list(part(program)) for part in parts}
        tables["grid"], seconds = grid(program)
        began = time.perf_counter()
        for path in sorted(program.models.glob("*.json")):
            program.simulate(path, [65_536], "--rate", "100gbit", "--latency", "8us")
        of_many = time.perf_counter() - began
    print("\n\n".join("\n".join(table) for table in tables.values()))
    if given.out:
        content = {
            "tables": tables,
            "grid_seconds": seconds,
            "all_models_65536_workers_seconds": of_many,
            "provenance": program.provenance,
        }
        write_results(given.out, content)
        print(f"\nthe grid took {seconds:.1f} s, all models with 65,536 workers {of_many:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
