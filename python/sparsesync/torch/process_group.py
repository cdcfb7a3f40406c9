"""A transport over the point-to-point calls of a torch ProcessGroup."""

from __future__ import annotations

import datetime
import itertools
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist

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

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: dist.ProcessGroup | None = group
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
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _start(self, call: Callable[[dist.ProcessGroup], dist.Work], data: torch.Tensor) -> int:
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

    It has a Gloo group of its own, so that its messages meet none of the program's. Raises UnsupportedError where torch was
    built without Gloo.
    """
    if not dist.is_gloo_available():
        raise _native.UnsupportedError("this build of torch has no Gloo: start the program with mpirun")
    ranks = dist.get_process_group_ranks(group)
    own = dist.new_group(ranks, timeout=deadline, backend="gloo", use_local_synchronization=True)
    if not isinstance(own, dist.ProcessGroup):
        raise _native.InputError("process_group: this process is not in it")
    machines: list[str] = [""] * len(ranks)
    dist.all_gather_object(machines, socket.gethostname(), group=own)
    nodes = [machines.index(machine) for machine in machines]
    return _native.transport_over(_Calls(own), dist.get_rank(group), nodes)
