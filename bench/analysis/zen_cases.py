#!/usr/bin/env python3
"""Recomputes the headline cases of the paper on Zen with `sparsesync plan`: 16 machines on links of 25 Gbit/s.

    bench/analysis/zen_cases.py DATA [--program build/release/bin/sparsesync] [--out bench/results/zen_cases.json]

DATA is a folder with lm1b_tokens.npy and criteo_fields.npy. Prints the tables of docs/zen.md, line by line as they appear there.
Densities, densification and skewness are those of the traces; nothing is fitted to the paper's figures.
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

WORKERS = 16
GPUS = 8  # GPUs per machine, in one row of the second table
RATE_BPS = 25e9
STEPS = 3

# The paper's densities, and the speed-ups that it reports for Zen over the dense all-reduce.
PAPER = {
    "LSTM": {"parameters": 406e6, "density": 0.0113, "over_dense": 6.77},
    "DeepFM": {"parameters": 214e6, "density": 0.0280, "over_dense": 2.10},
    "NMT": {"parameters": 112e6, "density": 0.0247, "over_dense": None},
    "DGC 5%": {"parameters": None, "density": 0.05, "over_dense": None},
}
SPARCML = ("recursive_doubling", "split_all_gather", "dynamic_split")


def traces(data):
    """Returns the arguments of `sparsesync trace` for each case."""
    shape = ["--workers", WORKERS, "--steps", STEPS]
    return {
        "LSTM": [
            *("from-tokens", data / "lm1b_tokens.npy", "--rows", 793471, "--width", 512),
            *("--batch", 2560, "--sampled", 8192, *shape),
        ],
        # This width makes 214 M parameters of the 205,065 rows.
        "DeepFM": ["from-fields", data / "criteo_fields.npy", "--width", 1044, "--batch", 1024, *shape[:2]],
        # The paper's density over 112 M parameters, drawn by the Zipf exponent that profile finds in LM1B's text.
        "NMT": [*("synthetic", "--rows", 218750, "--width", 512, "--density", 0.0247, "--zipf", 1.29, *shape, "--seed", 1)],
        # Elements are drawn uniformly: workers share only the elements that they share by chance.
        "DGC 5%": ["synthetic", "--rows", 4_000_000, "--width", 1, "--density", 0.05, "--zipf", 0, *shape[:2], "--seed", 1],
    }


def run(program, folder, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"zen_cases: {done.stderr}")
    return done.stdout


def case(program, folder, made):
    """Returns the figures that profile and plan report for one trace."""
    run(program, folder, "trace", *made, "--out", "T", "--force")
    (tensor,) = json.loads(run(program, folder, "profile", "T", "--partitions", str(WORKERS), "--json", "-"))["tensors"]
    link = ["--rate", "25gbit", "--latency", "10us"]
    workers = f"{GPUS},{WORKERS},{GPUS * WORKERS}"
    planned = json.loads(run(program, folder, "plan", "T", "--workers", workers, *link, "--json", "-"))
    by_workers = {each["n"]: each for each in planned["workers"]}
    header = json.loads((folder / "T" / "trace.json").read_text())["tensors"][0]
    return {
        "rows": header["rows"],
        "width": header["width"],
        "density": tensor["row_density"]["mean"],
        "densification": tensor["densification"],
        "skewness": tensor["skewness"][str(WORKERS)],
        "densification_of_machines": by_workers[GPUS * WORKERS]["densification"],
        "seconds": {scheme["name"]: scheme["seconds"] for scheme in by_workers[WORKERS]["schemes"]},
    }, planned["provenance"]


def by_the_papers_formulas(found):
    """Returns seconds as the paper counts bytes: a 4-byte index for every 4-byte element, and a hash bitmap of one bit per element."""
    n, d, gamma = WORKERS, found["density"], {int(k): value for k, value in found["densification"].items()}
    in_all = found["densification_of_machines"]  # union over all GPUs of all machines
    once = found["rows"] * found["width"] * 4 * 8 / RATE_BPS  # the dense gradient, one way
    return {
        "dense_ring": 2 * (n - 1) / n * once,
        "recursive_doubling": 2 * sum(gamma[2**i] for i in range(4)) * d * once,
        "balanced_hash": (n - 1) / n * (2 * d + gamma[n] * d + 1 / 32) * once,
        "balanced_hash, machines": (n - 1) / n * (2 * gamma[GPUS] * d + in_all * d + 1 / 32) * once,
        "balanced (theorem)": 2 * (n - 1) / n * (1 + gamma[n]) * d * once,
    }


def ratio(value):
    return f"{value:.2f}"


def tables(cases):
    yield "| case | rows × width | density: paper's, the trace's | γ(16) | s(16) |"
    yield "|---|---|---|---|---|"
    for name, found in cases.items():
        yield (
            f"| {name} | {found['rows']:,} × {found['width']:,} | {PAPER[name]['density']:.2%}, {found['density']:.2%} "
            f"| {ratio(found['densification'][str(WORKERS)])} | {ratio(found['skewness'])} |"
        )
    yield ""
    yield "| Zen (`balanced_hash`) is faster than | the paper | LSTM | DeepFM | NMT | DGC 5% |"
    yield "|---|---|---|---|---|---|"
    papers = "6.77 (LSTM), 2.10 (DeepFM)"

    def row(what, said, value):
        return f"| {what} | {said} | " + " | ".join(ratio(value(found)) for found in cases.values()) + " |"

    def planned(of):
        return lambda found: of(found["seconds"]) / found["seconds"]["balanced_hash"]

    def counted(name):
        return lambda found: found["by_formulas"][name] / found["by_formulas"]["balanced_hash"]

    yield row("dense ring, `plan`", papers, planned(lambda s: s["dense_ring"]))
    yield row("dense ring, an index for each element", papers, counted("dense_ring"))
    yield row(
        f"the same, a machine's gradient the sum of {GPUS} GPUs'",
        papers,
        lambda found: found["by_formulas"]["dense_ring"] / found["by_formulas"]["balanced_hash, machines"],
    )
    yield row("SparCML (the best of three), `plan`", "up to 2.82", planned(lambda s: min(s[name] for name in SPARCML)))
    yield row("SparCML (recursive doubling), an index for each element", "up to 2.82", counted("recursive_doubling"))
    yield row("OmniReduce (`block_ps`), `plan`", "up to 5.16", planned(lambda s: s["block_ps"]))
    yield ""
    yield "| milliseconds of a step, `plan` | LSTM | DeepFM | NMT | DGC 5% |"
    yield "|---|---|---|---|---|"
    shown = ("dense_ring", *SPARCML, "block_ps", "sparse_ps", "all_gather", "balanced_hash", "balanced", "owned")
    for scheme in shown:
        cells = " | ".join(f"{found['seconds'][scheme] * 1e3:.2f}" for found in cases.values())
        yield f"| `{scheme}` | {cells} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/sparsesync")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/zen_cases.json")
    given = parser.parse_args()
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, made in traces(given.data.resolve()).items():
            cases[name], provenance = case(given.program.resolve(), pathlib.Path(folder), made)
            cases[name]["by_formulas"] = by_the_papers_formulas(cases[name])
    for line in tables(cases):
        print(line)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, {"workers": WORKERS, "cases": cases, "provenance": provenance})


if __name__ == "__main__":
    main()
