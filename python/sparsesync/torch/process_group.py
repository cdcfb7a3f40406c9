"""A transport over the point-to-point calls of a torch ProcessGroup."""

from __future__ import annotations

import datetime
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from sparsesync import _native

_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
}


class _Calls:
    """What `transport_over` asks for, on a group of its own."""

    has_all_reduce = True

    def __init__(self, group: Any) -> None:
        self._group: Any = group  # a ProcessGroupGloo, which torch has no types of; None once it is closed
        self._numbers = itertools.count(1)
        self._started: dict[int, tuple[dist.Work, torch.Tensor]] = {}  # Gloo does not hold what it reads

    def send(self, rank: int, lane: int, data: torch.Tensor) -> int:
        return self._start(lambda group: group.send([data], rank, lane), data)

    def receive(self, rank: int, lane: int, data: torch.Tensor) -> int:
        return self._start(lambda group: group.recv([data], rank, lane), data)

    def wait(self, call: int, seconds: float) -> None:
        work, _ = self._started.pop(call)
        self._wait(work, seconds)

    def all_reduce(self, dtype: str, data: torch.Tensor, seconds: float) -> None:
        if self._group is None:
            raise RuntimeError("the group is closed")
        self._wait(self._group.allreduce([data.view(_DTYPES[dtype])]), seconds)

    def withdraw(self) -> None:
        self._started.clear()

    def close(self) -> None:
        self._started.clear()
        self._group = None

    def _start(self, call: Callable[[Any], dist.Work], data: torch.Tensor) -> int:
        if self._group is None:
            raise RuntimeError("the group is closed")
        number = next(self._numbers)
        self._started[number] = (call(self._group), data)
        return number

    @staticmethod
    def _wait(work: dist.Work, seconds: float) -> None:
        # At least a moment: what has come already is not late.
        work.wait(datetime.timedelta(milliseconds=max(1, round(seconds * 1000))))


def transport_over(group: dist.ProcessGroup, deadline: datetime.timedelta) -> _native.Transport:
    """A transport between the processes of `group`; all of them call this, in the same order.

    It has a Gloo group of its own, so that its messages meet none of the program's. torch does not know of that group: the
    names that torch gives to the program's groups depend on how many there are, and would differ between workers once some of
    them have made more. Raises UnsupportedError where torch was built without Gloo, DeadlineError naming the workers that do not call
    this.
    """
    if not dist.is_gloo_available():
        raise _native.UnsupportedError("this build of torch has no Gloo: start the program with mpirun")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = c10d._get_process_group_store(group)
    # All workers of the group count alike, whatever other groups they are in.
    number = whole.add(f"sparsesync/transports of {rank}", 1)
    store = c10d.PrefixStore(f"sparsesync/transport {number}", whole)
    store.set(f"machine of {rank}", socket.gethostname())
    keys = [f"machine of {each}" for each in range(size)]
    try:
        store.wait(keys, deadline)
        own = dist.ProcessGroupGloo(store, rank, size, deadline)
    except (dist.DistError, RuntimeError) as error:
        raise _native.DeadlineError(_explained(error, store, keys, deadline)) from error
    machines = [store.get(key) for key in keys]
    return _native.transport_over(_Calls(own), rank, [machines.index(machine) for machine in machines])


def _explained(error: Exception, store: c10d.Store, keys: Sequence[str], deadline: datetime.timedelta) -> str:
    try:
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
    except (dist.DistError, RuntimeError):
        missing = []
    if not missing:
        return f"the workers of the process group could not be connected by Gloo: {error}"
    who = f"worker {missing[0]} has" if len(missing) == 1 else f"workers {', '.join(missing)} have"
    return (
        f"{who} not made this DistributedDataParallel after {deadline.total_seconds():g} s: all workers of a process group make theirs "
        "in the same order; `deadline` is how long they wait"
    )
