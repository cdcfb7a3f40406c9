"""Connecting the processes of a training run, depending on how they were started."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import itertools
import json
import logging
import os
import socket
import weakref
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

from sparsesync import _native
from sparsesync._launchers import signs_of_others, started_by_mpirun, started_by_torchrun, torch_variables
from sparsesync.torch import process_group as over_group
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.safe_logging import log

# Equal to torch's default: a rank may compile, load or checkpoint while the others wait.
DEFAULT_DEADLINE = datetime.timedelta(minutes=30)


# Shortest wait for the other processes when this one ends. They may still be saving, and mpirun kills all processes when one exits early.
_LEAVING = datetime.timedelta(minutes=1)


_LONGEST = datetime.timedelta(days=10_000)  # fits into torch's milliseconds, and into Session's seconds


ALONE: Literal["alone"] = "alone"  # value of process_group: train without other workers, whatever launcher started the process


@dataclasses.dataclass(frozen=True)
class LocalMember:
    """A member of a group of workers that are threads of one process. ``local_group()`` returns them.

    Args:
        network: The network that connects the members.
        rank: Rank of this member, from 0.

    Example:
        >>> import sparsesync.torch
        >>> members = sparsesync.torch.local_group(2)
        >>> [member.rank for member in members]
        [0, 1]
    """

    network: _native.LocalNetwork
    rank: int


# Types of a process_group argument.
Group = dist.ProcessGroup | LocalMember | Literal["alone"] | None


def local_group(
    workers: int, *, rate_bps: float | None = None, latency_s: float = 0
) -> list[LocalMember]:
    """Creates a group of workers that are threads of this process.

    Pass each member as the ``process_group`` of one wrapper, in a separate thread.

    Args:
        workers: Number of workers.
        rate_bps: Rate of each worker's link, in bit/s in each direction; unlimited if not given.
        latency_s: Latency of each link, in seconds.

    Returns:
        One member per worker, ordered by rank.

    Raises:
        InputError: An argument is out of range.

    Example:
        >>> import concurrent.futures
        >>> import sparsesync.torch
        >>> import torch
        >>> def train(member):
        ...     model = torch.nn.Linear(2, 1, bias=False)
        ...     with sparsesync.torch.DistributedDataParallel(model, process_group=member) as ddp:
        ...         ddp(torch.full((1, 2), float(member.rank))).sum().backward()
        ...     return model.weight.grad
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ...     gradients = list(pool.map(train, sparsesync.torch.local_group(2)))
        >>> gradients  # both workers have the mean of 0 and 1
        [tensor([[0.5000, 0.5000]]), tensor([[0.5000, 0.5000]])]
    """
    network = _native.LocalNetwork(workers, rate_bps, latency_s)
    return [LocalMember(network, rank) for rank in range(workers)]


@dataclasses.dataclass
class Connection:
    """A transport, and how it was found."""

    transport: _native.Transport
    kind: str  # "mpi", "process_group", "ucx" or "local"; "nccl" uses one of these for control messages
    deadline: datetime.timedelta
    payloads: str = "in the host's memory"  # how gradients are sent, and why
    shares_gpu: bool = False  # another worker of this process uses the same GPU
    without_ucx: str = ""  # why Gloo connects the workers instead of UCX
    one_machine: bool = dataclasses.field(init=False)  # all workers are on one machine

    def __post_init__(self) -> None:
        self.one_machine = len(set(self.transport.nodes)) == 1

    @property
    def dense_scheme(self) -> str:
        """The fastest scheme for large dense gradients over this connection."""
        # MPI's own all-reduce between machines, and Gloo's beside UCX, take longer than the ring (bench/cluster/peers.py).
        has_faster = self.kind in ("process_group", "nccl") or (self.kind == "mpi" and self.one_machine)
        return "dense_native" if has_faster else "dense_ring"

    def open(self, device: CpuDevice, threads: int, memory_bytes: int | None, as_submitted: bool = False) -> _native.Session:
        """Opens a session over the transport. It is closed when the process ends, at the latest."""
        session = _native.Session(
            self.transport,
            deadline_s=self.deadline.total_seconds(),
            threads=threads,
            as_submitted=as_submitted,
            **device.session(memory_bytes),
        )
        close_at_exit(session)
        return session


@dataclasses.dataclass(frozen=True)
class Reach:
    """Facts about a worker's device that it sends to the others."""

    device: str
    asked: str | None  # the `transport` argument
    machine: str
    identity: str  # identifier of the GPU, unique on the machine
    nccl: str | None  # version of NCCL, if it is available
    problem: str  # why NCCL is not available
    shares: bool  # NCCL_MULTI_RANK_GPU_ENABLE lets several workers share a GPU
    ucx: str | None = None  # version of UCX, if it is available
    no_ucx: str = ""  # why it is not; empty if UCX is not used


# Values of the `transport` argument.
TRANSPORTS = ("ucx", "gloo", "mpi", "nccl", "staged")
_OF_HOSTS = {"ucx": "ucx", "gloo": "process_group", "mpi": "mpi"}  # those that connect hosts, and their kinds


def expect_known(transport: str | None) -> None:
    """Raises InputError unless the `transport` argument is one of TRANSPORTS, or None."""
    if transport is not None and transport not in TRANSPORTS:
        raise _native.InputError(f"there is no transport '{transport}': None, {', '.join(TRANSPORTS)}")


def payloads_of(workers: Sequence[Reach], reaches_devices: bool) -> tuple[bool, str]:
    """Returns whether gradients are sent by NCCL, and a text that says how they are sent and why.

    The result depends only on what all workers sent, so it is the same on all of them. So are the errors,
    AgreementError and UnsupportedError.

    reaches_devices: whether the transport reads and writes GPU memory directly.
    """
    first = workers[0]
    for rank, each in enumerate(workers):
        if (each.device == "cpu") != (first.device == "cpu"):
            raise _native.AgreementError(
                f"worker 0 has the module on {first.device}, worker {rank} on {each.device}: move it to one kind of "
                "device on all"
            )
        if each.asked != first.asked:
            raise _native.AgreementError(
                f"transport: worker 0 has {first.asked!r}, worker {rank} {each.asked!r}: give all workers "
                "the same"
            )
    if first.device == "cpu":
        if first.asked in ("nccl", "staged"):
            raise _native.UnsupportedError(f"transport '{first.asked}' is for GPUs: the module is on the CPU; leave transport out")
        return False, "in the host's memory"
    if first.asked is None and len(workers) == 1:
        return False, "nowhere: there is one worker"
    staged = "through pinned memory of the host"
    if first.asked == "staged" or first.asked in _OF_HOSTS:
        if reaches_devices:
            raise _native.UnsupportedError(f"transport '{first.asked}': workers of one process copy GPU memory directly: leave it out")
        return False, f"{staged}: as requested"
    lacking = next((rank for rank, each in enumerate(workers) if each.nccl is None), None)
    if first.asked == "nccl":
        if lacking is not None:
            raise _native.UnsupportedError(f"transport 'nccl': worker {lacking}: {workers[lacking].problem}; transport='staged' needs none")
        return True, f"by NCCL {first.nccl}: as requested"
    if reaches_devices:
        return False, "from GPU to GPU within the process"
    if lacking is not None:
        return False, f"{staged}: worker {lacking}: {workers[lacking].problem}"
    other = next((rank for rank, each in enumerate(workers) if each.nccl != first.nccl), None)
    if other is not None:
        return False, f"{staged}: worker 0 has NCCL {first.nccl}, worker {other} {workers[other].nccl}"
    for (one, a), (two, b) in itertools.combinations(enumerate(workers), 2):
        if (a.machine, a.identity) == (b.machine, b.identity) and not (a.shares and b.shares):
            return False, f"{staged}: workers {one} and {two} share a GPU, and NCCL needs one for each"
    return True, f"by NCCL {first.nccl}"


def _may_use_ucx(connection: Connection, asked: str | None) -> bool:
    """Returns whether UCX replaces the connection if it is available on all workers."""
    return asked == "ucx" or (asked is None and connection.kind == "process_group" and connection.transport.size > 1)


def _own_ucx(connection: Connection, asked: str | None) -> tuple[str | None, str]:
    """Returns the version of UCX, or None and why it is not available. Loads UCX only where it may be used."""
    if not _may_use_ucx(connection, asked):
        return None, ""
    try:
        return _native.ucx_version(), ""
    except _native.Error as error:
        return None, str(error)


def why_not_ucx(workers: Sequence[Reach]) -> str:
    """Returns why UCX cannot connect these workers, or an empty string if it can. The result is the same on all of them."""
    for rank, each in enumerate(workers):
        if each.ucx is None:
            return f"worker {rank}: {each.no_ucx}"
        if each.ucx.split(".")[:2] != (workers[0].ucx or "").split(".")[:2]:
            return f"worker 0 has UCX {workers[0].ucx}, worker {rank} {each.ucx}: install the same version"
    return ""


def over_hosts(connection: Connection, workers: Sequence[Reach]) -> Connection:
    """Chooses the network between hosts: UCX instead of Gloo, if all workers have it and no other is asked for.

    Raises UnsupportedError if the transport that is asked for is not available.
    """
    asked = workers[0].asked
    if asked in ("gloo", "mpi") and connection.kind != _OF_HOSTS[asked]:
        starts = {"gloo": "torchrun, or call torch.distributed.init_process_group() first", "mpi": "mpirun"}[asked]
        by = {"mpi": "MPI", "process_group": "torch's process group", "local": "threads of one process"}[connection.kind]
        raise _native.UnsupportedError(f"transport '{asked}': the workers are connected by {by}: start them with {starts}")
    if not _may_use_ucx(connection, asked):
        return dataclasses.replace(connection, without_ucx="as requested") if asked == "gloo" else connection
    problem = why_not_ucx(workers)
    if asked == "ucx" and problem:
        raise _native.UnsupportedError(f"transport 'ucx': {problem}")
    if problem:
        if connection.transport.rank == 0:
            log(logging.WARNING, "gradients go over Gloo, where steps take up to twice as long as over UCX: %s", problem)
        return dataclasses.replace(connection, without_ucx=problem)
    over_ucx = _native.ucx_over(connection.transport, connection.deadline.total_seconds())
    return Connection(over_ucx, "ucx", connection.deadline, connection.payloads)


def reach(connection: Connection, device: CpuDevice, asked: str | None) -> Connection:
    """Chooses the transport for gradients on ``device``: NCCL if it is available on all workers. All workers call it.

    UCX replaces Gloo if it is available on all workers, or if it is asked for.

    asked: one of TRANSPORTS, or None. Raises the errors of payloads_of() and over_hosts(), DeviceError if NCCL cannot
    connect the workers, and those of ucx_over().
    """
    expect_known(asked)
    facts = _native.device_facts()
    own = Reach(
        device.name,
        asked,
        socket.gethostname(),
        device.identity(),
        facts["nccl"],
        facts["nccl_problem"],
        os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
        *_own_ucx(connection, asked),
    )
    seconds = connection.deadline.total_seconds()
    told = connection.transport.all_gather(json.dumps(dataclasses.asdict(own)).encode(), seconds)
    workers = [Reach(**json.loads(each)) for each in told]
    by_nccl, payloads = payloads_of(workers, connection.transport.reaches_devices)
    in_process = connection.kind == "local" and device.native is not None
    shares_gpu = in_process and [each.identity for each in workers].count(own.identity) > 1
    if not by_nccl:
        found = over_hosts(connection, workers)
        return dataclasses.replace(found, payloads=payloads, shares_gpu=shares_gpu)
    native = device.native
    assert native is not None
    over_nccl = _native.nccl_over(connection.transport, native, seconds)
    return Connection(over_nccl, "nccl", connection.deadline, f"{payloads}, control messages over {connection.kind}", shares_gpu)


_mpi_worlds: list[_native.MpiWorld] = []  # the MPI world of this process, after the first use


def _join_mpi(deadline: datetime.timedelta) -> _native.Transport:
    """Joins the MPI world. The first call initializes MPI, which stays initialized until the process ends."""
    seconds = deadline.total_seconds()
    if not _mpi_worlds:
        _mpi_worlds.append(_native.MpiWorld(seconds, leaving_s=max(seconds, _LEAVING.total_seconds())))
    return _mpi_worlds[0].join(seconds)


_sessions: weakref.WeakSet[_native.Session] = weakref.WeakSet()


def close_at_exit(session: _native.Session) -> None:
    """Closes a session before the interpreter exits, because its thread must not outlive the interpreter."""
    _sessions.add(session)


@atexit.register
def _close() -> None:
    for session in list(_sessions):
        session.close()
    for world in _mpi_worlds:
        world.close()


def initialize_under_torchrun(deadline: datetime.timedelta | None) -> None:
    """Initializes torch's default group, unless it is initialized or MPI or nothing connects the processes.

    For processes of srun or PMI it sets torchrun's variables first.
    """
    if dist.is_initialized() or started_by_mpirun():
        return
    if not started_by_torchrun():
        os.environ.update(torch_variables())
    if started_by_torchrun():
        over_group.initialize(deadline)


def connect(
    group: Group,
    deadline: float | datetime.timedelta | None,
    device: CpuDevice,
    transport: str | None = None,
) -> Connection:
    """Connects the workers of a model whose gradients are on ``device``. All workers call it. See find() and reach()."""
    return reach(find(group, deadline), device, transport)


def _alone(deadline: datetime.timedelta | None) -> Connection:
    return Connection(_native.LocalNetwork(1).join(0), "local", DEFAULT_DEADLINE if deadline is None else deadline)


def _mpi_has_the_same_workers() -> bool:
    """Returns whether torch.distributed's default group, if initialized, has the processes that mpirun started.

    Raises InputError if it has fewer: several training runs would wait for each other forever.
    """
    if not dist.is_initialized():
        return True
    started, rank = int(os.environ["OMPI_COMM_WORLD_SIZE"]), os.environ.get("OMPI_COMM_WORLD_RANK")
    if dist.get_world_size() < started:
        raise _native.InputError(
            f"mpirun started {started} processes, torch.distributed has {dist.get_world_size()}: "
            "initialize it with as many, or give the process_group"
        )
    return (str(dist.get_rank()), dist.get_world_size()) == (rank, started)


def find(
    group: Group, deadline: float | datetime.timedelta | None
) -> Connection:
    """Connects the workers for data in host memory: over ``group``, or, without one, depending on the launcher.

    Processes that mpirun started are connected by MPI. Otherwise, torch's default group connects them if it is
    initialized or if torchrun, srun or a launcher with PMI's variables started them. Without a launcher the worker is
    alone. If torchrun runs within mpirun, torchrun decides, and so does a default group of more processes.

    deadline: seconds, or a timedelta; the timeout of the group if not given.

    Raises InputError if the group is unusable or has fewer processes than mpirun started, or if another launcher
    started this process with others.
    """
    deadline = as_timedelta(deadline)
    if group == ALONE:
        return _alone(deadline)
    if isinstance(group, LocalMember):
        wait = DEFAULT_DEADLINE if deadline is None else deadline
        return Connection(group.network.join(group.rank), "local", wait)
    if group is None and started_by_mpirun() and _mpi_has_the_same_workers():
        wait = DEFAULT_DEADLINE if deadline is None else deadline
        return Connection(_join_mpi(wait), "mpi", wait)
    if group is None:
        initialize_under_torchrun(deadline)
    if group is None and not dist.is_initialized():
        signs = signs_of_others()
        if signs:
            raise _native.InputError(
                f"this process is one of several ({', '.join(signs)}), and nothing says how to reach the others: start the program with "
                "torchrun, srun or Open MPI's mpirun, or set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port of it, and "
                "RANK and WORLD_SIZE if the launcher does not; process_group='alone' trains without the others"
            )
        return _alone(deadline)
    of_group = dist.group.WORLD if group is None else group
    if not isinstance(of_group, dist.ProcessGroup):
        raise _native.InputError(
            f"process_group: {type(of_group).__name__} is not a ProcessGroup that includes this process, a member of "
            "sparsesync.torch.local_group(), or 'alone'"
        )
    wait = timeout_of(of_group) if deadline is None else deadline
    return Connection(over_group.transport_over(of_group, wait), "process_group", wait)


def as_timedelta(deadline: float | datetime.timedelta | None) -> datetime.timedelta | None:
    """Converts a deadline to a timedelta. Raises InputError if it is not a usable duration."""
    if deadline is None:
        return None
    try:
        given = deadline if isinstance(deadline, datetime.timedelta) else datetime.timedelta(seconds=deadline)
    except (TypeError, ValueError, OverflowError):
        given = datetime.timedelta(0)
    if not datetime.timedelta(0) < given <= _LONGEST:
        raise _native.InputError(f"a deadline of {deadline!r}: seconds, or a datetime.timedelta; more than 0, and at most {_LONGEST}")
    return given


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """Returns the timeout of a group; torch's default if its backend does not report one."""
    for device in ("cpu", "cuda"):
        try:
            timeout = group._get_backend(torch.device(device)).options._timeout
        except (AttributeError, RuntimeError):
            continue
        if isinstance(timeout, datetime.timedelta):
            return timeout
    return DEFAULT_DEADLINE
