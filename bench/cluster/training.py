#!/usr/bin/env python3
"""Measures end-to-end training with sparsesync and with torch's DistributedDataParallel, on eight hosts that are network namespaces.

    bench/cluster/training.py [--rounds 3] [--steps 60] [--dense-rounds 1] [--nice 0]
                              [--out bench/results/training.json]

Runs python/examples/language_model.py on hosts with links of 200 Mbit/s, with mpirun or torchrun. Also runs it without
synchronization, as a single process and on all hosts at once, and within Lightning (lightning_model.py). Needs root, and a Python with
torch and Lightning. Prints a table and writes JSON.
Exit status 1 if a run's losses differ from torch's, or if the weights of its ranks differ. docs/performance/training.md explains each
figure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from cluster import RATE_BPS, ROOT, write_results
from hosts import Hosts
from peers import WORKERS, aligned, environment

EXAMPLE = ROOT / "python/examples/language_model.py"
WITHIN_LIGHTNING = ROOT / "bench/cluster/lightning_model.py"
LONGEST_S = 3600
# The largest accepted relative difference between a run's losses and torch's.
MOST_OFF = 1e-5
# Options of the example and their defaults here.
MODEL = {"vocabulary": 50000, "embedding": 128, "hidden": 128, "batch": 20, "length": 35, "sampled": 256}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training configuration. `launcher` is "mpi", "torch", or "alone" for one process without hosts. `words` are arguments of the
    program.
    """

    key: str
    label: str
    launcher: str
    words: tuple[str, ...]
    is_dense: bool = False  # sends whole tensors: seconds per step
    is_synchronized: bool = True
    program: pathlib.Path = EXAMPLE


def _ours(key: str, label: str, launcher: str, *words: str) -> Run:
    return Run(key, f"sparsesync, {label}", launcher, ("--ddp", "sparsesync", *words))


SPARSE, DENSE = ("--gradients", "sparse"), ("--gradients", "dense")
RUNS = (
    _ours("mpi", "sparse gradients, MPI", "mpi", *SPARSE),
    _ours("mpi-announced", "sparse gradients, announced, MPI", "mpi", *SPARSE, "--announce"),
    _ours("mpi-dense-gradients", "dense gradients, MPI", "mpi", *DENSE),
    _ours("ucx", "sparse gradients, UCX", "torch", *SPARSE, "--transport", "ucx"),
    _ours("ucx-announced", "sparse gradients, announced, UCX", "torch", *SPARSE, "--transport", "ucx", "--announce"),
    _ours("gloo", "sparse gradients, Gloo", "torch", *SPARSE, "--transport", "gloo"),
    _ours("gloo-announced", "sparse gradients, announced, Gloo", "torch", *SPARSE, "--transport", "gloo", "--announce"),
    Run("torch-sparse", "torch, sparse gradients, Gloo", "torch", ("--ddp", "torch", *SPARSE)),
    Run("torch-dense", "torch, dense gradients, Gloo", "torch", ("--ddp", "torch", *DENSE), is_dense=True),
    Run("lightning", "Lightning, backend sparsesync", "torch", ("backend", *SPARSE), program=WITHIN_LIGHTNING),
    Run("lightning-strategy", "Lightning, strategy sparsesync", "torch", ("strategy", *SPARSE), program=WITHIN_LIGHTNING),
    Run("compute", "nothing synchronized, all hosts at once", "mpi", ("--ddp", "none", *SPARSE), is_synchronized=False),
    Run("alone", "nothing synchronized, one process", "alone", ("--ddp", "none", *SPARSE), is_synchronized=False),
)
PEERS = ("torch-sparse", "torch-dense")
WRAPPER = "ucx"  # the run that those within Lightning are compared with, too


class Bench:
    def __init__(self, hosts: Hosts, given: argparse.Namespace, folder: pathlib.Path) -> None:
        self.hosts, self.given, self.file = hosts, given, folder / "result.json"
        self.runs = [each for each in RUNS if not given.runs or each.key in given.runs]

    def run(self, run: Run) -> dict[str, Any]:
        """Returns the example's JSON."""
        given = self.given
        words = [run.program, *run.words, "--steps", given.steps, "--json", self.file]
        for name in MODEL:
            words += [f"--{name}", getattr(given, name)]
        if given.text:
            words += ["--text", given.text.resolve()]
        if given.gloo_threads and run.key in PEERS:
            words += ["--gloo-threads", given.gloo_threads]
        self.file.unlink(missing_ok=True)
        options = {"timeout": LONGEST_S, "environment": environment(given.build)}
        if run.launcher == "mpi":
            self.hosts.mpirun(sys.executable, *words, **options)
        elif run.launcher == "torch":
            self.hosts.torchrun(*words, **options)
        else:
            done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False,
                                  timeout=LONGEST_S, env={**os.environ, **environment(given.build)})  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"the example ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        result: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return result

    def measure(self) -> dict[str, list[dict[str, Any]]]:
        """Runs the configurations alternately. Returns {run: results}."""
        results: dict[str, list[dict[str, Any]]] = {run.key: [] for run in self.runs}
        for number in range(self.given.rounds):
            for run in self.runs:
                if run.is_dense and number >= self.given.dense_rounds:
                    continue
                results[run.key].append(self.run(run))
                rate = steps_per_second(results[run.key][-1])
                said = f"round {number + 1} of {self.given.rounds}, {run.label}"
                print(f"{said}: {rate:.2f} steps/s", file=sys.stderr, flush=True)
        return results


def steps_per_second(result: dict[str, Any]) -> float:
    """Returns the rate of the median step. Leaves out the first third, in which schemes are tried and chosen."""
    ends = result["seconds"]
    first = max(1, len(ends) // 3)
    seconds = [end - begin for begin, end in zip(ends[first - 1 : -1], ends[first:], strict=True)]
    return 1 / float(statistics.median(seconds))


def off(losses: list[float], of_peer: list[float]) -> float:
    """Returns the largest relative difference."""
    return max(abs(own - other) / abs(other) for own, other in zip(losses, of_peer, strict=True))


def summary(run: Run, results: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [steps_per_second(result) for result in results]
    last = results[-1]
    figures: dict[str, Any] = {
        "label": run.label,
        "launcher": run.launcher,
        "words": list(run.words),
        "steps_per_second": statistics.median(rates),
        "steps_per_second_of_rounds": rates,
        "losses": last["losses"],
        "measures": last["measures"],
    }
    if run.is_synchronized:
        figures["weights_equal"] = all(result["parameters_equal"] for result in results)
    if last["bytes_sent_per_step"]:
        figures["bytes_sent_busiest"] = last["bytes_sent_per_step"]["busiest"]
        figures["schemes"] = {name: each["scheme"] for name, each in last["statistics"]["parameters"].items()}
        figures["seconds_exposed_a_step"] = last["statistics"]["seconds_exposed"] / len(last["losses"])
        figures["seconds_hidden_a_step"] = last["statistics"]["seconds_hidden"] / len(last["losses"])
    return figures


def compare(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Adds the comparisons with other runs. Returns a list of faults."""
    wrong = []
    for run in RUNS:
        if run.key not in figures or not run.is_synchronized:
            continue
        own = figures[run.key]
        if not own["weights_equal"]:
            wrong.append(f"{run.label}: the weights of the ranks differ")
        for peer in (*PEERS, WRAPPER):
            if peer not in figures:
                continue
            own[f"times_{peer}"] = own["steps_per_second"] / figures[peer]["steps_per_second"]
            if peer == run.key:
                continue
            own[f"losses_off_{peer}"] = off(own["losses"], figures[peer]["losses"])
            if not own[f"losses_off_{peer}"] <= MOST_OFF:  # also true if a loss is not a number
                amount = own[f"losses_off_{peer}"]
                wrong.append(f"{run.label}: a loss differs by {amount:.2g} (relative) from that of {figures[peer]['label']}")
        if "compute" in figures:
            own["compute_share"] = own["steps_per_second"] / figures["compute"]["steps_per_second"]
    return wrong


def table(figures: dict[str, dict[str, Any]]) -> list[str]:
    def number(of: dict[str, Any], key: str, form: str, scale: float = 1) -> str:
        return format(of[key] * scale, form) if key in of else "-"

    columns = ("steps/s", "seconds", "compute", "MB sent", "x sparse", "x dense", "x ucx")
    lines = [("", *columns, "loss", "off sparse", "off dense", "weights")]
    for of_run in figures.values():
        lines.append((
            of_run["label"],
            number(of_run, "steps_per_second", ".2f"),
            format(1 / of_run["steps_per_second"], ".4f"),
            number(of_run, "compute_share", ".0%"),
            number(of_run, "bytes_sent_busiest", ".3f", 1e-6),
            number(of_run, "times_torch-sparse", ".2f"),
            number(of_run, "times_torch-dense", ".1f"),
            number(of_run, f"times_{WRAPPER}", ".2f"),
            format(of_run["losses"][-1], ".5f"),
            number(of_run, "losses_off_torch-sparse", ".1e"),
            number(of_run, "losses_off_torch-dense", ".1e"),
            {True: "equal", False: "DIFFER", None: "-"}[of_run.get("weights_equal")],
        ))  # fmt: skip
    return aligned(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in MODEL.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"option of the example ({value})")
    parser.add_argument("--text", type=pathlib.Path, help="option of the example: a folder of .py files")
    parser.add_argument("--runs", nargs="+", choices=[run.key for run in RUNS], metavar="KEY",
                        help=", ".join(run.key for run in RUNS))  # fmt: skip
    parser.add_argument("--hosts", type=int, default=WORKERS)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dense-rounds", type=int, default=1, help="rounds of the slow torch-dense run (%(default)s)")
    parser.add_argument("--gloo-threads", type=int, help="option of the example, for torch's DistributedDataParallel only")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results/training.json")
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("training: network namespaces need root")
    return given


def main() -> int:
    given = arguments()
    os.nice(given.nice)
    with Hosts(given.hosts) as hosts, tempfile.TemporaryDirectory() as folder:
        hosts.shape(RATE_BPS)
        bench = Bench(hosts, given, pathlib.Path(folder))
        results = bench.measure()
        figures = {run.key: summary(run, results[run.key]) for run in bench.runs}
        wrong = compare(figures)
        one = next(iter(results.values()))[0]
        report = {
            "workers": given.hosts,
            "network": hosts.network(RATE_BPS),
            "model": {name: getattr(given, name) for name in MODEL}
            | {key: one[key] for key in ("parameters", "parameters_bytes")},
            "steps": given.steps,
            "rounds": given.rounds,
            "dense_rounds": given.dense_rounds,
            "gloo_threads": given.gloo_threads,
            "runs": figures,
            "wrong": wrong,
            "provenance": {**one["provenance"].pop("sparsesync"), **one["provenance"], "nice": given.nice,
                           **hosts.mpi_settings()},
        }  # fmt: skip
    size = f"{one['parameters'] / 1e6:.2f} million parameters, {one['parameters_bytes'] / 1e6:.1f} MB"
    print(f"{size}; {given.hosts} workers")
    print("\n".join(table(figures)))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, report)
    print(f"written: {given.out}")
    for line in wrong:
        print(f"training: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
