#!/usr/bin/env python3
"""Measures the overhead of sparsesync.torch for a dense MLP between processes of one machine, relative to torch's DistributedDataParallel,
and its import time beyond torch.

    bench/python/overhead.py [--workers 2] [--rounds 7] [--steps 30] [--out bench/results/python.json]
    bench/python/overhead.py --against OLD [--pairs 5]

Needs the release build and .venv (scripts/setup). torch, and sparsesync over UCX and over Gloo, train the same model alternately in
the same processes; sparsesync also trains over MPI, in processes of its own. A round's figure is the median of its steps on worker 0.
The result is the median over rounds of the ratio of sparsesync to torch. Prints a table and writes JSON.

--against takes a checkout of another commit that also has a release build, and measures both builds alternately. The table then holds
medians over pairs of new / old, of the seconds and, except over MPI, of the ratio to torch's step in the same processes. The ratio
cancels drifts of the machine's speed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "bench"))

from results_file import write_results  # noqa: E402

PYTHON = ROOT / ".venv/bin/python"
TRANSPORTS = ("ucx", "gloo", "mpi")
WIDTHS = {"small": (64, 256, 10), "middle": (256, 1024, 1024, 10), "large": (1024, 4096, 1024, 10)}
BATCH = 64


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path, help="a checkout whose build/release is measured in turn with this one's")
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each build with --against (5)")
    parser.add_argument("--rank-writes", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


Times = dict[str, dict[str, list[float]]]  # seconds of a step, by model, kind and round


# ---- One rank.


def step_seconds(ddp: Any, optimizer: Any, inputs: Any, targets: Any, steps: int) -> float:
    """Returns the median seconds of `steps` training steps."""
    import torch

    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def mlp(widths: tuple[int, ...]) -> Any:
    import torch

    torch.manual_seed(0)
    layers: list[Any] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def one_rank(given: argparse.Namespace) -> None:
    """Measures the seconds of a step by model, kind and round. Rank 0 writes them. A kind is "torch" or the transport of ours."""
    import sparsesync.torch
    import torch
    import torch.distributed as dist

    by_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    if not by_mpi:
        dist.init_process_group("gloo")
    found: Times = {}
    rank = 0
    for name, widths in WIDTHS.items():
        ours = {
            transport: sparsesync.torch.DistributedDataParallel(mlp(widths), transport=transport)
            for transport in (("mpi",) if by_mpi else ("ucx", "gloo"))
        }
        made = dict(ours) if by_mpi else {"torch": torch.nn.parallel.DistributedDataParallel(mlp(widths)), **ours}
        optimizers = {kind: torch.optim.SGD(ddp.parameters(), 0.01) for kind, ddp in made.items()}
        rank = next(iter(ours.values())).rank
        inputs, targets = torch.randn(BATCH, widths[0]), torch.randint(0, widths[-1], (BATCH,))
        for kind, ddp in made.items():
            step_seconds(ddp, optimizers[kind], inputs, targets, 5)
        found[name] = {kind: [] for kind in made}
        for _ in range(given.rounds):
            for kind, ddp in made.items():
                found[name][kind].append(step_seconds(ddp, optimizers[kind], inputs, targets, given.steps))
        for ddp in ours.values():
            ddp.close()
    if rank == 0:
        given.rank_writes.write_text(json.dumps(found), encoding="utf-8")
    if not by_mpi:
        dist.destroy_process_group()


# ---- All ranks.


def launched(given: argparse.Namespace, checkout: Path = ROOT) -> Times:
    """Measures all kinds of a checkout."""
    by_torchrun, by_mpirun = (launched_by(launcher, given, checkout) for launcher in launchers(given.workers))
    return {name: {**by_torchrun[name], **by_mpirun[name]} for name in WIDTHS}


def launched_by(launcher: list[str], given: argparse.Namespace, checkout: Path) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [*launcher, str(Path(__file__).resolve()), "--rounds", str(given.rounds), "--steps", str(given.steps)]
        done = subprocess.run(
            [*command, "--rank-writes", str(out)], env=environment(checkout), capture_output=True, text=True, timeout=1800, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"overhead.py: {launcher[0]} ended with status {done.returncode}:\n{done.stderr}")
        result: Times = json.loads(out.read_text(encoding="utf-8"))
        return result


def environment(checkout: Path = ROOT) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "build/release/python")}


def import_seconds(repeats: int = 7) -> dict[str, float]:
    """Returns median import times: of torch, and of sparsesync.torch after torch."""
    program = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import sparsesync.torch; "
        "print(b - a, time.perf_counter() - b)"
    )
    runs = [
        subprocess.run([PYTHON, "-c", program], env=environment(), capture_output=True, text=True, check=True).stdout.split()
        for _ in range(repeats)
    ]
    torch_alone, beyond = (statistics.median(float(run[i]) for run in runs) for i in range(2))
    return {"torch": torch_alone, "sparsesync_beyond_torch": beyond}


def launchers(workers: int) -> tuple[list[str], list[str]]:
    """Returns the commands of torchrun and mpirun."""
    return (
        [str(PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", str(workers)],
        [str(ROOT / "cmake/mpirun.sh"), "-np", str(workers), str(PYTHON)],
    )


def compare_builds(given: argparse.Namespace) -> None:
    """Prints new / old of the step's seconds and, except over MPI, of the ratio to torch's step in the same processes."""
    old = given.against.resolve()
    if not (old / "build/release/python/sparsesync").is_dir():
        raise SystemExit(f"overhead.py: --against {given.against}: build/release/python is missing; build the preset release there")
    columns = ("ucx", "ucx/torch", "gloo", "gloo/torch", "mpi")
    ratios: dict[tuple[str, str], list[float]] = {}
    for pair in range(given.pairs):
        checkouts = (old, ROOT) if pair % 2 == 0 else (ROOT, old)
        found = {checkout: launched(given, checkout) for checkout in checkouts}
        for name in WIDTHS:
            before, now = ({kind: statistics.median(of) for kind, of in found[each][name].items()} for each in (old, ROOT))
            for column in columns:
                transport, _, to_torch = column.partition("/")
                ratio = now[transport] / before[transport]
                ratios.setdefault((name, column), []).append(ratio * before["torch"] / now["torch"] if to_torch else ratio)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'new / old':<10}" + "".join(f"{column:>12}" for column in columns) + f"   medians of {given.pairs} pairs")
    for name in WIDTHS:
        print(f"{name:<10}" + "".join(f"{statistics.median(ratios[name, column]):>12.3f}" for column in columns))


def main() -> None:
    given = options()
    if given.rank_writes:
        one_rank(given)
        return
    if given.against:
        compare_builds(given)
        return
    found = launched(given)
    models = {}
    heads = "".join(f"{'over ' + transport:>12}{'x':>8}" for transport in TRANSPORTS)
    print(f"{'model':<8}{'torch':>12}{heads}   seconds of a step, {given.workers} workers")
    for name in WIDTHS:
        theirs = found[name]["torch"]
        each = {"torch_seconds": statistics.median(theirs)}
        line = f"{name:<8}{each['torch_seconds']:>12.5f}"
        for transport in TRANSPORTS:
            ours = found[name][transport]
            seconds = statistics.median(ours)
            # Rounds over MPI ran in processes of their own, so they form no pairs with torch's.
            paired = (a / b for a, b in zip(ours, theirs, strict=True))
            ratio = seconds / each["torch_seconds"] if transport == "mpi" else statistics.median(paired)
            each[f"{transport}_seconds"], each[f"{transport}_over_torch"] = seconds, ratio
            line += f"{seconds:>12.5f}{ratio:>8.3f}"
        models[name] = each
        print(line)
    imports = import_seconds()
    print(f"import: torch {imports['torch']:.2f} s, sparsesync.torch {imports['sparsesync_beyond_torch']:.3f} s more")
    if given.out:
        program = "import json, sparsesync; print(json.dumps(sparsesync.provenance()))"
        told = subprocess.run([PYTHON, "-c", program], env=environment(), capture_output=True, text=True, check=True).stdout
        document = {
            "workers": given.workers, "rounds": given.rounds, "steps": given.steps, "models": models, "import_seconds": imports,
            "provenance": json.loads(told),
        }  # fmt: skip
        write_results(given.out, document)


if __name__ == "__main__":
    sys.exit(main())
