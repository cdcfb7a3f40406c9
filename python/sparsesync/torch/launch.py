"""How the processes of a training find each other: as they were started."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import functools
import os
import weakref
from collections.abc import Mapping

import torch
import torch.distributed as dist

from sparsesync import _native
from sparsesync.torch import process_group as over_group

# As torch's own: a rank may compile, load or checkpoint while the others wait.
DEFAULT_DEADLINE = datetime.timedelta(minutes=30)


@dataclasses.dataclass(frozen=True)
class LocalMember:
    """A place in a group of workers that are threads of this process: what `local_group` returns."""

    network: _native.LocalNetwork
    rank: int


def local_group(
    workers: int, *, rate_bps: float | None = None, latency_s: float = 0
) -> list[LocalMember]:
    """Places for `workers` models in one process, one thread each: each is the `process_group` of one of them.

    rate_bps, latency_s: of each worker's link, in each direction; unshaped if not given.
    """
    network = _native.LocalNetwork(workers, rate_bps, latency_s)
    return [LocalMember(network, rank) for rank in range(workers)]


@dataclasses.dataclass
class Connection:
    """A transport, and how it was found."""

    transport: _native.Transport
    kind: str  # "mpi", "process_group" or "local"
    deadline: datetime.timedelta
    one_machine: bool = dataclasses.field(init=False)  # has all workers

    def __post_init__(self) -> None:
        self.one_machine = len(set(self.transport.nodes)) == 1

    @property
    def dense_scheme(self) -> str:
        """For gradients that are dense: the faster one here."""
        # Between machines MPI's own all-reduce takes longer than the ring (bench/cluster/peers.py).
        has_faster = self.kind == "process_group" or (self.kind == "mpi" and self.one_machine)
        return "dense_native" if has_faster else "dense_ring"


@functools.cache
def _mpi_world() -> _native.MpiWorld:
    """The one of this process: it initializes MPI, and ends with the process."""
    return _native.MpiWorld()


_sessions: weakref.WeakSet[_native.Session] = weakref.WeakSet()


def close_at_exit(session: _native.Session) -> None:
    """Its thread has to be gone when the interpreter goes."""
    _sessions.add(session)


@atexit.register
def _close() -> None:
    for session in list(_sessions):
        session.close()
    if _mpi_world.cache_info().currsize:
        _mpi_world().close()


def started_by_mpirun(environment: Mapping[str, str] = os.environ) -> bool:
    return "OMPI_COMM_WORLD_SIZE" in environment


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    return all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def connect(
    group: dist.ProcessGroup | LocalMember | None, deadline: float | datetime.timedelta | None
) -> Connection:
    """The transport of a model: over `group`, or, without one, as the launcher started the processes.

    deadline: seconds, or a timedelta; the group's own if not given.

    Started by mpirun they are connected by MPI; by torchrun, or with torch.distributed initialized, by its default group;
    else there is this worker alone. Raises InputError for a group that is none, or of another size than the launcher's.
    """
    if deadline is not None and not isinstance(deadline, datetime.timedelta):
        deadline = datetime.timedelta(seconds=deadline)
    if isinstance(group, LocalMember):
        return Connection(group.network.join(group.rank), "local", deadline or DEFAULT_DEADLINE)
    if group is None and started_by_mpirun():
        world = _mpi_world()
        if dist.is_initialized() and dist.get_world_size() != world.size:
            raise _native.InputError(
                f"mpirun started {world.size} processes, torch.distributed has {dist.get_world_size()}: "
                "initialize it with as many, or give the process_group"
            )
        return Connection(world.join(), "mpi", deadline or DEFAULT_DEADLINE)
    if group is None and not dist.is_initialized() and started_by_torchrun():
        dist.init_process_group("gloo")
    if group is None and not dist.is_initialized():
        return Connection(_native.LocalNetwork(1).join(0), "local", deadline or DEFAULT_DEADLINE)
    of_group = dist.group.WORLD if group is None else group
    if not isinstance(of_group, dist.ProcessGroup):
        raise _native.InputError(
            f"process_group: {type(of_group).__name__} is no ProcessGroup that this process is in, nor one of "
            "sparsesync.torch.local_group()"
        )
    wait = deadline or timeout_of(of_group)
    return Connection(over_group.transport_over(of_group, wait), "process_group", wait)


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """The group's own deadline; torch's default where its back end does not tell."""
    try:
        timeout = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return DEFAULT_DEADLINE
    return timeout if isinstance(timeout, datetime.timedelta) else DEFAULT_DEADLINE
