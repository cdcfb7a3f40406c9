#!/usr/bin/env python3
"""One rank of bench/cluster/peers.py: gradients by one variant after another, each step timed, each result checked.

    mpirun ... exchange.py PLAN.json FOLDER
    torchrun ... exchange.py PLAN.json FOLDER

PLAN.json: {"launcher", "traces": {name: path}, "variants": [key], "repeat", "dense_repeat", "shapers"}. The last is []
or, of each rank, the commands that show what its link has let through: then a step more is made, with a rest before and
after it, and what the link moved between them is noted. Writes FOLDER/RANK.json.
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
import torch
import torch.distributed as dist
from openmpi import OpenMpi
from sparsesync.torch.process_group import transport_over
from variants import BY_KEY, Variant

DEADLINE_S = 120
# For what is on its way to come, acknowledgements too.
REST_S = 0.1
# Until all have heard when a step begins.
NOTICE_S = 0.02
# `auto` tries some ways before it settles.
MOST_STEPS_TO_SETTLE = 300

Sums = list[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes."""

    sent: int = 0
    received: int = 0

    def __sub__(self, before: Moved) -> Moved:
        return Moved(self.sent - before.sent, self.received - before.received)


@dataclasses.dataclass
class Gradients:
    """One worker's step of a trace, and what all workers' sum to."""

    tensors: list[sparsesync.TensorSpec]
    own: Sums  # of each tensor: indices, values
    sums: Sums

    @staticmethod
    def of(path: str, rank: int, size: int) -> Gradients:
        trace = sparsesync.Trace(path)
        if trace.workers != size:
            raise ValueError(f"{path} was made for {trace.workers} workers, here are {size}")
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
    """The sum of row-sparse parts: rows, increasing, and values, which are small integers: any order is exact."""
    rows, places = np.unique(np.concatenate([indices for indices, _ in parts]), return_inverse=True)
    values = np.concatenate([of_part for _, of_part in parts])
    sums = np.zeros((len(rows), values.shape[1]), values.dtype)
    np.add.at(sums, places, values)
    return torch.from_numpy(rows), torch.from_numpy(sums)


def check(result: torch.Tensor | tuple[torch.Tensor, torch.Tensor], sums: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Compares a result, dense or (rows, values), with the sum, element by element.

    The sums are integers below 256, which bf16 holds, too: nothing may be off. Raises ValueError.
    """
    rows, values = sums
    if isinstance(result, tuple):
        if not torch.equal(result[0], rows):
            raise ValueError(f"{len(result[0])} rows where {len(rows)} were touched, or others")
        if not torch.equal(result[1], values):
            raise ValueError(f"{int((result[1] != values).sum())} values are not the sums")
        return
    wrong = int((result[rows] != values).sum())
    more = int(result.count_nonzero()) - int(values.count_nonzero())
    if wrong or more:
        raise ValueError(f"{wrong} values are not the sums, {more} beside them are not 0")


class Exchange(abc.ABC):
    """A variant at work. All ranks make the same calls."""

    announces = False

    @abc.abstractmethod
    def warm_up(self) -> None: ...

    def prepare(self) -> None:  # noqa: B027
        """What the coming step is given; not timed."""

    def announce(self) -> None:
        raise NotImplementedError

    @abc.abstractmethod
    def step(self) -> None:
        """From the gradients to the sums, as tensors."""

    @abc.abstractmethod
    def results(self) -> list[Any]: ...

    def moved(self) -> Moved:
        """So far, by its own account."""
        return Moved()

    def scheme(self) -> str:
        return ""

    def close(self) -> None:  # noqa: B027
        """Leaves."""


class OverSession(Exchange):
    """One of our schemes."""

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
        raise RuntimeError(f"auto did not settle in {MOST_STEPS_TO_SETTLE} steps")

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
        """As a gradient of torch has it: a tensor of its own for what is sparse, written over what was given else."""
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
    """An all-reduce of whole tensors, in place."""

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
    """torch.distributed.all_reduce of coalesced sparse tensors."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._tensors: list[torch.Tensor] = []

    def warm_up(self) -> None:
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
            dist.all_reduce(tensor)

    def results(self) -> list[Any]:
        together = [tensor.coalesce() for tensor in self._tensors]
        return [(tensor.indices()[0], tensor.values()) for tensor in together]


class Rank(abc.ABC):
    """This process among those that its launcher started."""

    rank: int
    size: int

    @abc.abstractmethod
    def latest(self, seconds: float) -> float:
        """The largest of what all ranks give; a barrier."""

    def begin_together(self) -> None:
        """Returns on all ranks at once: a barrier lets some go long before others. They share a clock."""
        time.sleep(max(0.0, self.latest(time.monotonic()) + NOTICE_S - time.monotonic()))

    @abc.abstractmethod
    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class OfMpi(Rank):
    """Of mpirun; sparsesync makes all MPI calls."""

    def __init__(self) -> None:
        self._world = sparsesync.MpiWorld(DEADLINE_S)
        self.rank, self.size = self._world.rank, self._world.size
        # Of its own: in one with a bucket there is no barrier between an announcement and its step.
        self._beside = sparsesync.Session(self._world.join(), deadline_s=DEADLINE_S)

    def latest(self, seconds: float) -> float:
        return max(float(struct.unpack("d", each)[0]) for each in self._beside.all_gather(struct.pack("d", seconds)))

    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange:
        return OverSession(self._world.join(), variant, gradients)

    def close(self) -> None:
        self._beside.close()
        self._world.close()


class OfOpenMpi(Rank):
    """Of mpirun, without sparsesync."""

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
    """Of torchrun."""

    def __init__(self) -> None:
        self._deadline = datetime.timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", timeout=self._deadline)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def latest(self, seconds: float) -> float:
        largest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.item()

    def exchange(self, variant: Variant, gradients: Gradients) -> Exchange:
        if variant.scheme:
            assert dist.group.WORLD is not None
            return OverSession(transport_over(dist.group.WORLD, self._deadline), variant, gradients)
        return DenseAllReduce(gradients, dist.all_reduce) if variant.is_dense else SparseAllReduce(gradients)

    def close(self) -> None:
        dist.destroy_process_group()


RANKS: dict[str, Callable[[], Rank]] = {"mpi": OfMpi, "openmpi": OfOpenMpi, "torch": OfTorch}


@dataclasses.dataclass
class Seen:
    """What one rank saw of one variant."""

    scheme: str = ""
    # Of each step. Seconds of CLOCK_MONOTONIC, which is the same on all hosts.
    begin: list[float] = dataclasses.field(default_factory=list)
    end: list[float] = dataclasses.field(default_factory=list)
    announce_begin: list[float] = dataclasses.field(default_factory=list)
    announce_end: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)  # seconds of this process, all its threads
    moved: list[Moved] = dataclasses.field(default_factory=list)  # by the variant's own account
    announce_moved: list[Moved] = dataclasses.field(default_factory=list)
    # Of one more step, its announcement left out.
    link: Moved | None = None


def timed(body: Callable[[], None], begin: list[float], end: list[float]) -> None:
    begin.append(time.monotonic())
    body()
    end.append(time.monotonic())


class Link:
    """What this rank's link lets through, counted by its shapers."""

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
                # At once: the launcher then ends the others, who cannot know of it.
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
