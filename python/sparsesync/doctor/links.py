"""Measures the links between processes over each transport: ``python -m sparsesync.doctor.links``, started on all ranks.

The processes meet through MPI if mpirun started them, and through torch's store if torchrun did. With ``--pair``, this process examines
torch, starts the other process itself, and they meet through a file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparsesync import _launchers
from sparsesync.doctor import probes, processes

if TYPE_CHECKING:
    from sparsesync import _native

_LATENCY_S = 0.15  # duration of the measurement of the latency, approximately
_RATE_S = 0.1  # duration of each of the three transfers that measure the rate
_PIECE = 1 << 20  # bytes that Session.broadcast passes on at once
_LEAST_BYTES, _MOST_BYTES = 1 << 18, 1 << 26
_WITHOUT_SHARED_MEMORY = "tcp,self"  # value of UCX_TLS

Connect = Callable[[], "_native.Transport"]


def measure(transport: _native.Transport, deadline_s: float) -> dict[str, Any]:
    """Measures the links of the ring of all ranks, as a session sees them. All ranks call it.

    Returns:
        The median one-way latency of a link in seconds, ``latency_s``; the rate of the slowest link in bits/s, ``rate_bps``; and the
        numbers of ``ranks`` and ``machines``. A single rank has no link, so only these two.
    """
    import numpy as np

    from sparsesync import _native

    machines = len(set(transport.nodes))
    if transport.size == 1:
        return {"ranks": 1, "machines": 1}
    with _native.Session(transport, deadline_s=deadline_s) as session:
        last, word = session.size - 1, np.zeros(1, np.int64)

        def agreed(count: float) -> int:
            """Returns the number of rank 0."""
            word[0] = int(count)
            session.broadcast(word)
            return int(word[0])

        def round_trip(data: Any) -> float:
            """Sends data from rank 0 along the ring to the last rank, and a word from there to all others. Returns seconds."""
            began = time.perf_counter()
            session.broadcast(data, root=0)
            session.broadcast(word, root=last)
            return time.perf_counter() - began

        def timed(count: int, data: Any) -> float:
            return statistics.median([round_trip(data) for _ in range(count)])

        # The word passes n links from one send of rank 0 to the next.
        seconds = timed(5, word)
        seconds = timed(agreed(min(1000, max(5, _LATENCY_S / seconds))), word)
        rate = _LEAST_BYTES / timed(2, np.zeros(_LEAST_BYTES, np.uint8))
        size = agreed(min(_MOST_BYTES, max(_LEAST_BYTES, rate * _RATE_S)))
        # Each rank passes a piece on while it receives the next one.
        carried = size + (session.size - 2) * min(size, _PIECE)
        taken = timed(3, np.zeros(size, np.uint8))
        return {
            "latency_s": seconds / session.size,
            "rate_bps": 8 * carried / taken,
            "ranks": session.size,
            "machines": machines,
        }


class _Networks:
    """The transports between these processes."""

    def __init__(self, given: argparse.Namespace) -> None:
        from sparsesync import _native

        self._until = given.until
        if _launchers.started_by_mpirun():
            self.words = "mpi"
            world = _native.MpiWorld(self.seconds())
            self._join: Connect = lambda: world.join(self.seconds())
            return
        import torch.distributed as dist
        from torch._C._distributed_c10d import FileStore
        from torch.distributed import distributed_c10d as c10d

        from sparsesync.torch import process_group as over_group

        self.words = "gloo"
        if given.pair:
            rank, size = given.rank, 2
            store: c10d.Store = FileStore(f"{given.report}.store", size)
        else:
            over_group.initialize(self._deadline(), "started `python -m sparsesync doctor`")
            rank, size = dist.get_rank(), dist.get_world_size()
            store = c10d._get_process_group_store(c10d._get_default_group())
        self._join = lambda: over_group.transport_between(store, rank, size, self._deadline())

    def seconds(self) -> float:
        """Returns the timeout of a wait that begins now."""
        return _left(self._until)

    def _deadline(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.seconds())

    def join(self) -> _native.Transport:
        """Returns this process's end of a new network over MPI or Gloo."""
        return self._join()

    def over_ucx(self) -> _native.Transport:
        """Returns this process's end of a new network over UCX."""
        from sparsesync import _native

        return _native.ucx_over(self.join(), self.seconds())

    def all(self, given: argparse.Namespace) -> Iterator[tuple[str, str, Connect]]:
        """Yields the networks to measure: transport, path within a machine, and the function that connects it."""
        is_local = bool(given.path)
        yield self.words, given.path, self.join
        if not given.ucx or (is_local and not _has_ucx()):
            return  # ranks of a launcher find out together, because connecting them names the rank that lacks it
        if is_local and "UCX_TLS" not in os.environ:
            yield "ucx", "shared memory", self.over_ucx
            os.environ["UCX_TLS"] = _WITHOUT_SHARED_MEMORY  # UCX reads it when it connects
            yield "ucx", given.path, self.over_ucx
        else:
            yield "ucx", f"UCX_TLS={os.environ['UCX_TLS']}" if "UCX_TLS" in os.environ else "", self.over_ucx


def _has_ucx() -> bool:
    from sparsesync import _native

    try:
        return bool(_native.ucx_version())
    except _native.Error:
        return False


def _left(until: float) -> float:
    """Returns the seconds until a time of time.monotonic(), at least a tenth."""
    return max(0.1, until - time.monotonic())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m sparsesync.doctor.links")
    parser.add_argument("--until", type=float, required=True, help="end of all waits for other processes: a time of time.monotonic()")
    parser.add_argument("--ucx", action="store_true", help="measure UCX, too")
    parser.add_argument("--facts", default="null", help="JSON that is gathered from all ranks")
    parser.add_argument("--path", default="", help="path between processes of one machine, such as TCP; for the report")
    parser.add_argument("--pair", action="store_true", help="start the other process, too")
    parser.add_argument("report", help="file for the facts")
    given = parser.parse_args(arguments)
    processes.limit_this_process(_left(given.until) + 2)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    report = processes.Report(given.report)
    if not given.pair:
        # mpirun gives both of the processes that doctor starts the same file.
        shares_report = given.path and os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0"
        _measure_all(given, processes.Report(os.devnull) if shares_report else report)
        return
    facts = probes.torch(_left(given.until))
    report.add(torch=facts)
    if facts.get("problem") or not facts["gloo"]:
        return
    other = os.fork()  # the import of torch takes seconds of CPU time, and is not repeated
    given.rank = 0 if other else 1
    if other:
        _measure_all(given, report, other)
    else:
        processes.limit_this_process(_left(given.until) + 2)
        _measure_all(given, processes.Report(os.devnull))


def _measure_all(given: argparse.Namespace, report: processes.Report, other: int | None = None) -> None:
    """Connects the processes, and measures each network. other: process of the other end, if this one started it."""
    from sparsesync import _native

    transport = "mpi" if _launchers.started_by_mpirun() else "gloo"
    path = given.path
    report.add(began=transport, path=path)
    try:
        networks = _Networks(given)
        if not given.path:
            own = json.dumps({"host": socket.gethostname(), "facts": json.loads(given.facts)}).encode()
            report.add(gathered=[json.loads(each) for each in networks.join().all_gather(own, networks.seconds())])
    except _native.Error as error:
        report.add(link=transport, path=path, problem=f"{error}{_end_of(other)}")
        return
    if transport == "mpi":
        report.add(version=probes.mpi_library())
    for transport, path, connect in networks.all(given):
        report.add(began=transport, path=path)
        try:
            report.add(link=transport, path=path, **measure(connect(), networks.seconds()))
        except _native.Error as error:
            report.add(link=transport, path=path, problem=f"{error}{_end_of(other)}")
            if transport == networks.words:
                return  # UCX needs it to connect


def _end_of(process: int | None) -> str:
    """Returns how the other process ended, for a message; empty if it runs or ended well."""
    if process is None:
        return ""
    ended, status = os.waitpid(process, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status) if ended else 0
    return f"; the other process {processes.ended(code)}" if code else ""


if __name__ == "__main__":
    main(sys.argv[1:])
