#!/usr/bin/env python3
"""Runs one rank of bench/cluster/peers.py: synchronizes gradients with each variant, times each step and checks each result.

    mpirun ... exchange.py PLAN.json FOLDER
    torchrun ... exchange.py PLAN.json FOLDER

PLAN.json: {"launcher", "traces": {name: path}, "variants": [key], "repeat", "dense_repeat", "shapers"}. `shapers` is [], or holds for
each rank the commands that print the bytes that its link has passed. In that case each variant runs one more step, with a pause
before and after it, and records the bytes that the link passed in between. Writes FOLDER/RANK.json.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime
import json
import os
import pathlib
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import sparsesync
import sparsesync.torch
import torch
import torch.distributed as dist
from openmpi import OpenMpi
from sparsesync.torch.process_group import transport_over
from variants import BY_KEY, Variant

DEADLINE_S = 120
# Pause for packets in flight to arrive, including acknowledgements.
REST_S = 0.1
# Time for all ranks to learn when a step begins.
NOTICE_S = 0.02
# `auto` tries several candidates before it chooses.
MOST_STEPS_TO_SETTLE = 300
# The backend has two buckets for each shape, and does not tell when `auto` has chosen: each tries at most 24 candidates.
STEPS_OF_BACKEND = 60

Sums = list[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes that a worker sent and received."""

    sent: int = 0
    received: int = 0

    def __sub__(self, before: Moved) -> Moved:
        return Moved(self.sent - before.sent, self.received - before.received)


@dataclasses.dataclass
class Gradients:
    """One worker's gradients in one step of a trace, and the sums over all workers."""

    tensors: list[sparsesync.TensorSpec]
    own: Sums  # indices and values of each tensor
    sums: Sums

    @staticmethod
    def of(path: str, rank: int, size: int) -> Gradients:
        trace = sparsesync.Trace(path)
        if trace.workers != size:
            raise ValueError(f"{path} has {trace.workers} workers, but there are {size} ranks")
        loaded = [trace.load(worker, 0) for worker in range(size)]
        own = [(torch.from_numpy(rows), torch.from_numpy(values)) for rows, values in loaded[rank].values()]
        sums = [summed([parts[tensor.name] for parts in loaded]) for tensor in trace.tensors]
        return Gradients(trace.tensors, own, sums)

    def dense(self) -> list[torch.Tensor]:
        whole = []
        for tensor, (rows, values) in zip(self.tensors, self.own, strict=True):
            whole.append(torch.zeros(tensor.rows, tensor.width, dtype=values.dtype))
            whole[-1].index_add_(0, rows, values)
        return whole


def summed(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds up row-sparse parts. Returns increasing rows and their values. Values are small integers, so the sum is exact in any order."""
    rows, places = np.unique(np.concatenate([indices for indices, _ in parts]), return_inverse=True)
    values = np.concatenate([of_part for _, of_part in parts])
    sums = np.zeros((len(rows), values.shape[1]), values.dtype)
    np.add.at(sums, places, values)
    return torch.from_numpy(rows), torch.from_numpy(sums)


def check(result: torch.Tensor | tuple[torch.Tensor, torch.Tensor], sums: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Compares a result, dense or (rows, values), with the sum, element by element.

    The sums are integers below 256, which bf16 represents exactly, so no difference is accepted. Raises ValueError.
    """
    rows, values = sums
    if isinstance(result, tuple):
        if not torch.equal(result[0], rows):
            raise ValueError(f"got {len(result[0])} rows, expected the {len(rows)} touched rows")
        if not torch.equal(result[1], values):
            raise ValueError(f"{int((result[1] != values).sum())} values differ from the sums")
        return
    wrong = int((result[rows] != values).sum())
    more = int(result.count_nonzero()) - int(values.count_nonzero())
    if wrong or more:
        raise ValueError(f"{wrong} values differ from the sums, {more} values of untouched rows are not 0")


class Exchange(abc.ABC):
    """Runs one variant. All ranks make the same calls."""

    announces = False

    @abc.abstractmethod
    def warm_up(self) -> None: ...

    def prepare(self) -> None:  # noqa: B027
        """Prepares the input of the next step. Not timed."""

    def announce(self) -> None:
        raise NotImplementedError

    @abc.abstractmethod
    def step(self) -> None:
        """Synchronizes the gradients. results() then returns the sums as tensors."""

    @abc.abstractmethod
    def results(self) -> list[Any]: ...

    def moved(self) -> Moved:
        """Returns the bytes so far, as the variant itself counts them."""
        return Moved()

    def scheme(self) -> str:
        return ""

    def close(self) -> None:  # noqa: B027
        """Leaves the session or group."""


class OverSession(Exchange):
    """Runs one of sparsesync's schemes."""

    def __init__(self, transport: sparsesync.Transport, variant: Variant, gradients: Gradients) -> None:
        self._session = sparsesync.Session(transport, deadline_s=DEADLINE_S)
        self._gradients = gradients
        self._dense = gradients.dense() if variant.is_dense else []
        self.announces = variant.announces
        self._bucket = self._session.register_bucket(
            variant.key, gradients.tensors, variant.scheme, "sum", variant.wire, variant.announces
        )
        self._results: list[Any] = []

    def warm_up(self) -> None:
        for steps in range(MOST_STEPS_TO_SETTLE):
            if self.announces:
                self.announce()
            self.step()
            if steps >= 1 and self._session.choice(self._bucket)["settled"]:
                return
        raise RuntimeError(f"auto did not choose a scheme within {MOST_STEPS_TO_SETTLE} steps")

    def announce(self) -> None:
        self._session.wait(self._session.announce(self._bucket, [rows for rows, _ in self._gradients.own]))

    def step(self) -> None:
        session, bucket = self._session, self._bucket
        reduced = session.reduce(bucket, self._dense or self._gradients.own)
        gathered = session.gather(bucket)
        session.wait(reduced)
        session.wait(gathered)
        self._results = [self._taken(place) for place in range(len(self._gradients.tensors))]

    def _taken(self, place: int) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns a result as a PyTorch gradient: a new tensor if it is sparse; if it is dense, the same tensor in every step."""
        rows = self._session.result_rows(self._bucket, place)
        like = self._gradients.own[place][1]
        if rows is None:
            whole = torch.empty_like(self._dense[place]) if not self._results else self._results[place]
            self._session.write_dense(self._bucket, place, whole)
            return whole
        taken = torch.empty(rows, dtype=torch.int64), torch.empty(rows, like.shape[1], dtype=like.dtype)
        self._session.copy_result(self._bucket, place, *taken)
        return taken

    def results(self) -> list[Any]:
        return self._results

    def moved(self) -> Moved:
        use = self._session.use(self._bucket)
        return Moved(use["bytes_sent"], use["bytes_received"])

    def scheme(self) -> str:
        return str(self._session.choice(self._bucket)["scheme"])

    def close(self) -> None:
        self._session.close()


class DenseAllReduce(Exchange):
    """Reduces whole tensors in place."""

    def __init__(self, gradients: Gradients, all_reduce: Callable[[torch.Tensor], object]) -> None:
        self._all_reduce = all_reduce
        self._given = gradients.dense()
        self._tensors = [torch.empty_like(each) for each in self._given]

    def warm_up(self) -> None:
        self.prepare()
        self.step()

    def prepare(self) -> None:
        for tensor, given in zip(self._tensors, self._given, strict=True):
            tensor.copy_(given)

    def step(self) -> None:
        for tensor in self._tensors:
            self._all_reduce(tensor)

    def results(self) -> list[Any]:
        return self._tensors


class SparseAllReduce(Exchange):
    """Calls torch.distributed.all_reduce on coalesced sparse tensors."""

    def __init__(self, gradients: Gradients, backend: str = "gloo") -> None:
        self._gradients = gradients
        self._tensors: list[torch.Tensor] = []
        self._is_ours = backend != "gloo"
        self._group = dist.new_group(backend=backend) if self._is_ours else dist.group.WORLD

    def warm_up(self) -> None:
        for _ in range(STEPS_OF_BACKEND if self._is_ours else 1):
            self.prepare()
            self.step()

    def prepare(self) -> None:
        self._tensors = [
            torch.sparse_coo_tensor(
                rows.unsqueeze(0), values.clone(), (of.rows, of.width), is_coalesced=True, check_invariants=False
            )
            for of, (rows, values) in zip(self._gradients.tensors, self._gradients.own, strict=True)
        ]

    def step(self) -> None:
        for tensor in self._tensors:
            dist.all_reduce(tensor, group=self._group)

    def moved(self) -> Moved:
        if not self._is_ours:
            return Moved()
        device = torch.device("cpu")
        counters = self._group._get_backend(device).reducer(device).counters()
        return Moved(counters["bytes_sent"], counters["bytes_received"])

    def close(self) -> None:
        if self._is_ours:
            dist.destroy_process_group(self._group)

    def results(self) -> list[Any]:
        together = [tensor.coalesce() for tensor in self._tensors]
        return [(tensor.indices()[0], tensor.values()) for tensor in together]


class Rank(abc.ABC):
    """This process, among the ranks that the launcher started."""

    rank: int
    size: int

    @abc.abstractmethod
    def latest(self, seconds: float) -> float:
        """Returns the largest value of all ranks. A barrier."""

    def begin_together(self) -> None:
        """Returns on all ranks at the same time. A barrier alone releases some ranks much earlier than others. The ranks share a clock."""
        time.sleep(max(0.0, self.latest(time.monotonic()) + NOTICE_S - time.monotonic()))

    @abc.abstractmethod
    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class OfMpi(Rank):
    """A rank that mpirun started. sparsesync makes all MPI calls."""

    def __init__(self) -> None:
        self._world = sparsesync.MpiWorld(DEADLINE_S)
        self.rank, self.size = self._world.rank, self._world.size
        # A second session, because a session with a bucket allows no barrier between an index prefetch and its step.
        self._beside = sparsesync.Session(self._world.join(), deadline_s=DEADLINE_S)

    def latest(self, seconds: float) -> float:
        return max(float(struct.unpack("d", each)[0]) for each in self._beside.all_gather(struct.pack("d", seconds)))

    def transport(self, variant: Variant) -> sparsesync.Transport:  # noqa: ARG002
        return self._world.join()

    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange:
        return OverSession(self.transport(variant), variant, gradients)

    def close(self) -> None:
        self._beside.close()
        self._world.close()


class OfOpenMpi(Rank):
    """A rank that mpirun started, without sparsesync."""

    def __init__(self) -> None:
        self._mpi = OpenMpi()
        self.rank, self.size = self._mpi.rank, self._mpi.size

    def latest(self, seconds: float) -> float:
        largest = torch.tensor([seconds], dtype=torch.float64)
        self._mpi.all_reduce(largest, "max")
        return largest.item()

    def exchange(self, _: Variant, gradients: Gradients) -> Exchange:
        return DenseAllReduce(gradients, self._mpi.all_reduce)

    def close(self) -> None:
        self._mpi.close()


class OfTorch(Rank):
    """A rank that torchrun started."""

    def __init__(self) -> None:
        self._deadline = datetime.timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", timeout=self._deadline)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def latest(self, seconds: float) -> float:
        largest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.item()

    def transport(self, variant: Variant) -> sparsesync.Transport:
        assert dist.group.WORLD is not None
        transport = transport_over(dist.group.WORLD, self._deadline)
        return sparsesync.ucx_over(transport, DEADLINE_S) if variant.ucx else transport

    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange:
        if variant.scheme:
            return OverSession(self.transport(variant), variant, gradients)
        return DenseAllReduce(gradients, dist.all_reduce) if variant.is_dense else SparseAllReduce(gradients, variant.backend)

    def close(self) -> None:
        dist.destroy_process_group()


RANKS: dict[str, Callable[[], Rank]] = {"mpi": OfMpi, "openmpi": OfOpenMpi, "torch": OfTorch}


@dataclasses.dataclass
class Seen:
    """Measurements of one variant on one rank."""

    scheme: str = ""
    # One element per step, in seconds of CLOCK_MONOTONIC, which is the same on all hosts.
    begin: list[float] = dataclasses.field(default_factory=list)
    end: list[float] = dataclasses.field(default_factory=list)
    announce_begin: list[float] = dataclasses.field(default_factory=list)
    announce_end: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)  # seconds of this process, all threads
    moved: list[Moved] = dataclasses.field(default_factory=list)  # counted by the variant itself
    announce_moved: list[Moved] = dataclasses.field(default_factory=list)
    # Bytes of one further step, without its index prefetch.
    link: Moved | None = None


def timed(body: Callable[[], None], begin: list[float], end: list[float]) -> None:
    begin.append(time.monotonic())
    body()
    end.append(time.monotonic())


class Link:
    """Counts the bytes that this rank's link passes, with the counters of its traffic shapers."""

    def __init__(self, shapers: list[list[str]], rank: Rank) -> None:
        self._shapers, self._rank = shapers, rank
        self._of_nothing = self._moved_by(lambda: None)

    def moved_by(self, body: Callable[[], None]) -> Moved:
        return self._moved_by(body) - self._of_nothing

    def _moved_by(self, body: Callable[[], None]) -> Moved:
        self._rank.begin_together()
        time.sleep(REST_S)
        before = self._let_through()
        self._rank.begin_together()
        body()
        self._rank.begin_together()
        time.sleep(REST_S)
        return self._let_through() - before

    def _let_through(self) -> Moved:
        # The shaper is the link's only queue.
        shown = [subprocess.run(words, check=True, capture_output=True).stdout for words in self._shapers]
        sent, received = (int(json.loads(each)[0]["bytes"]) for each in shown)
        return Moved(sent, received)


def measure(exchange: Exchange, rank: Rank, link: Link | None, sums: Sums, repeat: int) -> Seen:
    exchange.warm_up()
    seen = Seen(exchange.scheme())
    for _ in range(repeat):
        exchange.prepare()
        at_first = exchange.moved()
        if exchange.announces:
            rank.begin_together()
            timed(exchange.announce, seen.announce_begin, seen.announce_end)
        before = exchange.moved()
        rank.begin_together()
        processor = time.process_time()
        timed(exchange.step, seen.begin, seen.end)
        seen.processor.append(time.process_time() - processor)
        seen.moved.append(exchange.moved() - before)
        seen.announce_moved.append(before - at_first)
        for result, of_tensor in zip(exchange.results(), sums, strict=True):
            check(result, of_tensor)
    if link:
        exchange.prepare()
        if exchange.announces:
            exchange.announce()
        seen.link = link.moved_by(exchange.step)
    return seen


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    plan = json.loads(pathlib.Path(arguments[0]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    rank = RANKS[plan["launcher"]]()
    link = Link(plan["shapers"][rank.rank], rank) if plan["shapers"] else None
    seen: dict[str, dict[str, Any]] = {}
    for name, path in plan["traces"].items():
        gradients = Gradients.of(path, rank.rank, rank.size)
        seen[name] = {}
        for key in plan["variants"]:
            variant = BY_KEY[key]
            exchange = rank.exchange(variant, gradients)
            repeat = plan["dense_repeat" if variant.is_dense else "repeat"]
            try:
                of_variant = measure(exchange, rank, link, gradients.sums, repeat)
            except Exception:
                # Exit immediately: the launcher then ends the other ranks, which cannot detect the failure.
                traceback.print_exc()
                print(f"exchange: {name}, {key}, worker {rank.rank}: failed", file=sys.stderr, flush=True)
                os._exit(1)
            rank.begin_together()
            exchange.close()
            seen[name][key] = dataclasses.asdict(of_variant)
    rank.close()
    told = {"seen": seen, "provenance": sparsesync.provenance(), "torch": torch.__version__}
    (pathlib.Path(arguments[1]) / f"{rank.rank}.json").write_text(json.dumps(told), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
