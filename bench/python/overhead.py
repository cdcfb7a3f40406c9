#!/usr/bin/env python3
"""Measures the overhead of sparsesync.torch for a dense MLP between processes of one machine, relative to torch's DistributedDataParallel,
and its import time beyond torch.

    bench/python/overhead.py [--workers 2] [--rounds 7] [--steps 30] [--out bench/results/python.json]
    bench/python/overhead.py --against OLD [--pairs 5]

Needs the release build and .venv (scripts/setup). Both wrappers train the same model alternately in the same processes, over Gloo;
sparsesync also trains over MPI. A round's figure is the median of its steps on worker 0. The result is the median over rounds of
the ratio of sparsesync to torch. Prints a table and writes JSON.

--against takes a checkout of another commit that also has a release build, and measures both builds alternately. The table then holds
medians over pairs of new / old: of the seconds, and of the ratio to torch's step in the same processes. The ratio cancels drifts of
the machine's speed.
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
    """Measures the seconds of a step by model, wrapper and round. Rank 0 writes them."""
    import sparsesync.torch
    import torch
    import torch.distributed as dist

    by_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    if not by_mpi:
        dist.init_process_group("gloo")
    found: dict[str, dict[str, list[float]]] = {}
    rank = 0
    for name, widths in WIDTHS.items():
        wrappers = {"sparsesync": sparsesync.torch.DistributedDataParallel}
        if not by_mpi:
            wrappers["torch"] = torch.nn.parallel.DistributedDataParallel
        made = {kind: wrap(mlp(widths)) for kind, wrap in wrappers.items()}
        optimizers = {kind: torch.optim.SGD(ddp.parameters(), 0.01) for kind, ddp in made.items()}
        rank = made["sparsesync"].rank
        inputs, targets = torch.randn(BATCH, widths[0]), torch.randint(0, widths[-1], (BATCH,))
        for kind, ddp in made.items():
            step_seconds(ddp, optimizers[kind], inputs, targets, 5)
        found[name] = {kind: [] for kind in made}
        for _ in range(given.rounds):
            for kind, ddp in made.items():
                found[name][kind].append(step_seconds(ddp, optimizers[kind], inputs, targets, given.steps))
        made["sparsesync"].close()
    if rank == 0:
        given.rank_writes.write_text(json.dumps(found), encoding="utf-8")
    if not by_mpi:
        dist.destroy_process_group()


# ---- All ranks.


Times = dict[str, dict[str, list[float]]]  # seconds of a step, by model, wrapper and round


def launched(launcher: list[str], given: argparse.Namespace, checkout: Path = ROOT) -> Times:
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


def launchers(workers: int) -> dict[str, list[str]]:
    return {
        "Gloo": [str(PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", str(workers)],
        "MPI": [str(ROOT / "cmake/mpirun.sh"), "-np", str(workers), str(PYTHON)],
    }


def compare_builds(given: argparse.Namespace) -> None:
    """Prints new / old: of the step's seconds, and, over Gloo, of the ratio to torch's step in the same processes."""
    old = given.against.resolve()
    if not (old / "build/release/python/sparsesync").is_dir():
        raise SystemExit(f"overhead.py: --against {given.against}: build/release/python is missing; build the preset release there")
    seconds: dict[tuple[str, str], list[float]] = {}
    to_torch: dict[str, list[float]] = {}
    for pair in range(given.pairs):
        for network, launcher in launchers(given.workers).items():
            checkouts = (old, ROOT) if pair % 2 == 0 else (ROOT, old)
            found = {checkout: launched(launcher, given, checkout) for checkout in checkouts}
            for name in WIDTHS:
                before, now = ({kind: statistics.median(of) for kind, of in found[each][name].items()} for each in (old, ROOT))
                ratio = now["sparsesync"] / before["sparsesync"]
                seconds.setdefault((network, name), []).append(ratio)
                if "torch" in now:
                    to_torch.setdefault(name, []).append(ratio * before["torch"] / now["torch"])
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{'new / old':<10}{'over Gloo':>12}{'to torch':>12}{'over MPI':>12}   medians of {given.pairs} pairs")
    for name in WIDTHS:
        medians = [statistics.median(of) for of in (seconds["Gloo", name], to_torch[name], seconds["MPI", name])]
        print(f"{name:<10}" + "".join(f"{each:>12.3f}" for each in medians))


def main() -> None:
    given = options()
    if given.rank_writes:
        one_rank(given)
        return
    if given.against:
        compare_builds(given)
        return
    gloo, mpi = (launched(launcher, given) for launcher in launchers(given.workers).values())
    models = {}
    print(f"{'model':<8}{'torch':>12}{'over Gloo':>12}{'x':>8}{'over MPI':>12}{'x':>8}   seconds of a step, {given.workers} workers")
    for name in WIDTHS:
        theirs, ours, over_mpi = gloo[name]["torch"], gloo[name]["sparsesync"], mpi[name]["sparsesync"]
        models[name] = {
            "torch_seconds": statistics.median(theirs),
            "gloo_seconds": statistics.median(ours),
            "mpi_seconds": statistics.median(over_mpi),
            "gloo_over_torch": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
            "mpi_over_torch": statistics.median(over_mpi) / statistics.median(theirs),
        }
        each = models[name]
        print(
            f"{name:<8}{each['torch_seconds']:>12.5f}{each['gloo_seconds']:>12.5f}{each['gloo_over_torch']:>8.3f}"
            f"{each['mpi_seconds']:>12.5f}{each['mpi_over_torch']:>8.3f}"
        )
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
