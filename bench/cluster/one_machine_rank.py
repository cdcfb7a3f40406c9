#!/usr/bin/env python3
"""Runs one rank of bench/cluster/one_machine.py, or, if ranks are threads, all of them. Times each step and checks the results.

    one_machine_rank.py torch|mpi|threads REPEAT MOST_BYTES FOLDER

Leaves out larger cases. Writes FOLDER/RANK.json. The environment variable WORKERS is the number of ranks that are threads.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import sparsesync
import torch
import torch.distributed as dist
from exchange import DEADLINE_S, DenseAllReduce, Exchange, Gradients, OfMpi, OfTorch, OverSession, SparseAllReduce, check, summed
from variants import Variant


@dataclasses.dataclass(frozen=True)
class Case:
    """A collective operation on f32. Each worker has values in `touched` rows of a tensor, which are dense if these are all of them."""

    name: str
    kind: str  # "dense", "gather" or "sparse"
    rows: int
    width: int
    touched: int

    @property
    def bytes(self) -> int:
        return self.touched * self.width * 4


CASES = (
    Case("all-reduce of 64 B", "dense", 1, 16, 1),
    Case("all-reduce of 256 KiB", "dense", 64, 1024, 64),
    Case("all-reduce of 100 MB", "dense", 1000, 25_000, 1000),
    Case("all-gather of 64 B", "gather", 1, 16, 1),
    Case("all-gather of 256 KiB", "gather", 64, 1024, 64),
    Case("sparse, 1 KiB in 100,000 rows", "sparse", 100_000, 32, 8),
    Case("sparse, 1 MiB in 1,000,000 rows", "sparse", 1_000_000, 32, 8192),
)
LARGE_BYTES = 10_000_000  # of a case that is repeated a fifth as often
SCHEMES = {"dense": ("dense_ring", "dense_direct"), "gather": ("",), "sparse": ("balanced",)}
TRANSPORTS = {"torch": ("torch", "gloo", "ucx"), "mpi": ("mpi",), "threads": ("local",)}  # [launcher]


def variants(launcher: str, kind: str) -> list[Variant]:
    """Returns what is measured in cases of this kind. The first of torchrun is torch's own operation."""
    made = []
    for transport in TRANSPORTS[launcher]:
        for scheme in SCHEMES[kind] if transport != "torch" else ("",):
            label = f"{scheme or 'all_gather'}, {transport}" if transport != "torch" else "torch, Gloo"
            made.append(Variant(transport, label, launcher, scheme, is_dense=kind == "dense", ucx=transport == "ucx"))
    return made


def gradients(case: Case, rank: int, size: int) -> Gradients:
    """Returns gradients of small integers, so that sums are exact in any order."""

    def of(worker: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(worker)
        rows = np.sort(random.choice(case.rows, case.touched, replace=False)).astype(np.int64)
        return rows, random.integers(1, 9, (case.touched, case.width)).astype(np.float32)

    sums = [] if case.kind == "gather" else [summed([of(worker) for worker in range(size)])]
    rows, values = of(rank)
    tensors = [sparsesync.TensorSpec("t", case.rows, case.width, "f32")]
    return Gradients(tensors, [(torch.from_numpy(rows), torch.from_numpy(values))], sums)


class Gather(Exchange):
    """Gathers the workers' values on all workers, over a session or by torch."""

    def __init__(self, own: torch.Tensor, size: int, session: sparsesync.Session | None) -> None:
        self._own, self._session = own, session
        self._all = [torch.empty_like(own) for _ in range(size)]
        self._gathered: list[bytes] = []

    def warm_up(self) -> None:
        self.step()

    def step(self) -> None:
        if self._session is None:
            dist.all_gather(self._all, self._own)
        else:
            self._gathered = self._session.all_gather(self._own.numpy().tobytes())

    def results(self) -> list[Any]:
        return self._gathered or [each.numpy().tobytes() for each in self._all]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


class Rank(Protocol):
    """A rank of exchange.py, or a thread."""

    rank: int
    size: int

    def transport(self, variant: Variant) -> sparsesync.Transport: ...
    def begin_together(self) -> None: ...


class OfThreads:
    """A rank that is a thread of this process."""

    def __init__(self, network: Callable[[int], sparsesync.LocalNetwork], barrier: threading.Barrier, rank: int) -> None:
        self._network, self._barrier, self.rank, self.size = network, barrier, rank, barrier.parties
        self._joined = 0

    def transport(self, _: Variant) -> sparsesync.Transport:
        self._joined += 1
        return self._network(self._joined).join(self.rank)

    def begin_together(self) -> None:
        self._barrier.wait()


def exchange(rank: Rank, case: Case, variant: Variant, given: Gradients) -> Exchange:
    of_torch = variant.key == "torch"
    if case.kind == "gather":
        session = None if of_torch else sparsesync.Session(rank.transport(variant), deadline_s=DEADLINE_S)
        return Gather(given.own[0][1], rank.size, session)
    if not of_torch:
        return OverSession(rank.transport(variant), variant, given)
    return DenseAllReduce(given, dist.all_reduce) if variant.is_dense else SparseAllReduce(given)


def measure(rank: Rank, case: Case, variant: Variant, given: Gradients, repeat: int) -> list[list[float]]:
    """Returns for each step the seconds of its begin and its end, and this process's processor time."""
    running = exchange(rank, case, variant, given)
    running.warm_up()
    seen = []
    for _ in range(repeat):
        running.prepare()
        rank.begin_together()
        processor, begin = time.process_time(), time.monotonic()
        running.step()
        seen.append([begin, time.monotonic(), time.process_time() - processor])
    results = running.results()
    for result, sums in zip(results, given.sums, strict=False):
        check(result, sums)
    for worker, result in enumerate(results if case.kind == "gather" else []):
        if result != gradients(case, worker, rank.size).own[0][1].numpy().tobytes():
            raise ValueError(f"got wrong bytes of worker {worker}")
    rank.begin_together()
    running.close()
    return seen


def measure_all(rank: Rank, launcher: str, repeat: int, most_bytes: int) -> dict[str, dict[str, list[list[float]]]]:
    """Returns {case: {label: steps}}."""
    seen = {}
    for case in CASES:
        if case.bytes > most_bytes:
            continue
        given = gradients(case, rank.rank, rank.size)
        steps = repeat if case.bytes < LARGE_BYTES else max(1, repeat // 5)
        seen[case.name] = {each.label: measure(rank, case, each, given, steps) for each in variants(launcher, case.kind)}
    return seen


def main(launcher: str, repeat: int, most_bytes: int, folder: pathlib.Path) -> None:
    torch.set_num_threads(1)

    def keep(rank: int, seen: dict[str, Any]) -> None:
        told = {"seen": seen, "provenance": sparsesync.provenance(), "torch": torch.__version__}
        (folder / f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")

    if launcher != "threads":
        rank = OfMpi() if launcher == "mpi" else OfTorch()
        keep(rank.rank, measure_all(rank, launcher, repeat, most_bytes))
        rank.close()
        return
    barrier = threading.Barrier(int(os.environ["WORKERS"]), timeout=DEADLINE_S)
    networks: dict[int, sparsesync.LocalNetwork] = {}
    lock = threading.Lock()

    def network(number: int) -> sparsesync.LocalNetwork:
        with lock:
            return networks.setdefault(number, sparsesync.LocalNetwork(barrier.parties))

    def work(rank: int) -> None:
        keep(rank, measure_all(OfThreads(network, barrier, rank), launcher, repeat, most_bytes))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
