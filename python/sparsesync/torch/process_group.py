"""A transport over the point-to-point calls of a torch ProcessGroup."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d as c10d

from sparsesync import _native

_Found = TypeVar("_Found")

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
        work.wait(datetime.timedelta(milliseconds=max(1, math.ceil(seconds * 1000))))


def initialize(deadline: datetime.timedelta | None) -> None:
    """Makes torch's default group, over Gloo, of the processes that torchrun started. Raises DeadlineError naming those that did not
    come within `deadline`, torch's own if not given; PeerLostError or Error where the network fails meanwhile."""
    wait = c10d.default_pg_timeout if deadline is None else deadline
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def meet(connecting: _Connecting) -> None:
        store = _store_of_launcher(rank, size, connecting)
        connecting.all_come(c10d.PrefixStore("sparsesync/start", store), "started its training, or does not make a DistributedDataParallel")
        dist.init_process_group("gloo", store=c10d.PrefixStore("default_pg", store), rank=rank, world_size=size, timeout=wait)

    _Connecting(rank, size, wait, _address_of_launcher()).run(meet)
    # The program's own collectives wait as long as torch has them wait.
    c10d._get_default_group()._get_backend(torch.device("cpu"))._set_default_timeout(c10d.default_pg_timeout)


def _address_of_launcher() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _store_of_launcher(rank: int, size: int, connecting: _Connecting) -> c10d.Store:
    """The store at MASTER_ADDR and MASTER_PORT, as torch's env:// makes it; but that worker 0 would wait for the others within it, and
    could not say who is missing, and that the others would wait twice as long as they are to."""
    address, port = _address_of_launcher()
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        connecting.reach(address, port)
    return TCPStore(
        address,
        port,
        size,
        is_master=serves,
        timeout=connecting.left(),
        wait_for_workers=False,
        multi_tenant=True,
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )


def transport_over(group: dist.ProcessGroup, deadline: datetime.timedelta) -> _native.Transport:
    """A transport between the processes of `group`; all of them call this, in the same order.

    It has a Gloo group of its own, so that its messages meet none of the program's. torch does not know of that group: the
    names that torch gives to the program's groups depend on how many there are, and would differ between workers once some of
    them have made more. Raises UnsupportedError where torch was built without Gloo, DeadlineError naming the workers that do not call
    this, PeerLostError or Error where the network fails meanwhile.
    """
    if not dist.is_gloo_available():
        raise _native.UnsupportedError("this build of torch has no Gloo: start the program with mpirun")
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = c10d._get_process_group_store(group)

    def meet(connecting: _Connecting) -> tuple[list[bytes], Any]:
        # All workers of the group count alike, whatever other groups they are in.
        number = whole.add(f"sparsesync/transports of {rank}", 1)
        store = c10d.PrefixStore(f"sparsesync/transport {number}", whole)
        machines = connecting.all_come(store, "made this DistributedDataParallel", socket.gethostname())
        return machines, dist.ProcessGroupGloo(store, rank, size, max(deadline, _MOMENT))

    machines, own = _Connecting(rank, size, deadline, _server_of(whole)).run(meet)
    return _native.transport_over(_Calls(own), rank, [machines.index(machine) for machine in machines])


def _server_of(store: c10d.Store) -> tuple[str, int] | None:
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, TCPStore) else None


# torch waits for ever where it is given less.
_MOMENT = datetime.timedelta(milliseconds=1)
# Once connecting has failed, for the others to say that they are still there.
_LAST_WORDS = datetime.timedelta(milliseconds=500)
# After the deadline, for what connecting has to say once it has failed.
_LAST_ANSWERS = datetime.timedelta(milliseconds=750)


class _Connecting:
    """The time in which workers meet by a store and then connect. What torch raises meanwhile becomes an error of ours."""

    def __init__(self, rank: int, size: int, deadline: datetime.timedelta, server: tuple[str, int] | None = None) -> None:
        """server: host and port of the store, if it has one."""
        self._rank = rank
        self._size = size
        self._deadline = deadline
        self._server = server
        self._began = time.monotonic()
        self._store: c10d.Store | None = None
        self._not_done = ""  # what those have not done that are waited for
        self._awaited = 0  # the worker that is waited for: those before it have come

    def run(self, meet: Callable[[_Connecting], _Found]) -> _Found:
        """Returns what `meet` returns. It runs in a thread of its own, because torch's store waits without a limit for the process that
        serves it, which may be stopped or unreachable. Raises DeadlineError then, and ends the connection to the store. What a signal's
        handler raises ends both, too."""
        future: concurrent.futures.Future[_Found] = concurrent.futures.Future()

        def call() -> None:
            try:
                with self:
                    found = meet(self)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(found)

        try:
            threading.Thread(target=call, name="sparsesync connects", daemon=True).start()
        except RuntimeError as error:
            raise _native.Error(f"the thread that connects to the other workers cannot be started: {error}") from error
        try:
            while (seconds := self._until_unanswered()) > 0:
                if concurrent.futures.wait([future], seconds).done:
                    return future.result()
        finally:
            if not future.done():  # the store does not answer, or a signal's handler raised
                self._hang_up()
                concurrent.futures.wait([future], _LAST_WORDS.total_seconds())
        raise _native.DeadlineError(
            f"torch's store, which worker 0 or its launcher serves, does not answer after {self._seconds()}: the process that serves it is "
            "stopped, or cannot be reached"
        )

    def _until_unanswered(self) -> float:
        """Returns the seconds until the store is late: if it answers, connecting has ended by then."""
        return self._began + (self._deadline + _LAST_ANSWERS).total_seconds() - time.monotonic()

    def _hang_up(self) -> None:
        """Shuts down this process's connections to the store, which ends calls that wait for it. A thread that such a call wakes
        while the process ends would abort the process."""
        if self._server is None:
            return
        host, port = self._server
        with contextlib.suppress(OSError):
            addresses = {(each[4][0], port) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
            for descriptor in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as end:
                    peer = end.getpeername()
                    if isinstance(peer, tuple) and (peer[0].removeprefix("::ffff:"), peer[1]) in addresses:
                        end.shutdown(socket.SHUT_RDWR)

    def left(self) -> datetime.timedelta:
        return max(_MOMENT, self._deadline - datetime.timedelta(seconds=time.monotonic() - self._began))

    def reach(self, address: str, port: int) -> None:
        """Waits until somebody listens there."""
        pause = 0.01
        while True:
            try:
                socket.create_connection((address, port), self.left().total_seconds()).close()
                return
            except OSError as error:
                if self._is_late():
                    raise _native.DeadlineError(
                        f"worker 0, or its launcher, does not serve torch's store at {address}:{port} after {self._seconds()}: {error}"
                    ) from error
            time.sleep(min(pause, self.left().total_seconds()))
            pause = min(2 * pause, 0.5)

    def all_come(self, store: c10d.Store, not_done: str, word: str = "") -> list[bytes]:
        """Waits for all workers to come here. Returns their words.

        not_done: what a worker that does not come has not done.
        """
        self._store, self._not_done = store, not_done
        store.set(f"word of {self._rank}", word)
        words = []
        for rank in range(self._size):
            self._awaited = rank
            key = f"word of {rank}"
            store.wait([key], self.left())
            words.append(store.get(key))
        self._not_done = ""
        self._began = time.monotonic()  # none is late; they connect at once
        return words

    def __enter__(self) -> _Connecting:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, *__: object) -> None:
        if error is None:
            self._end()
        elif isinstance(error, RuntimeError | ValueError) and not isinstance(error, _native.Error):
            raise self._explained(error) from error

    def _end(self) -> None:
        """Says that this worker was here to the end, whether it was connected or not."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"end of {self._rank}", "")

    def _explained(self, error: Exception) -> _native.Error:
        said = str(error).partition("\n")[0]
        kind = _native.DeadlineError if self._is_late() else _native.Error
        if self._store is None:
            return kind(f"torch's store, by which workers find each other, cannot be used: {said}")
        after = self._seconds()
        try:
            missing = self._missing()
        except RuntimeError:
            return self._without_store(said)
        who = f"worker {missing[0]} has" if len(missing) == 1 else f"workers {', '.join(map(str, missing))} have"
        if missing and self._not_done:
            return _native.DeadlineError(
                f"{who} not {self._not_done} after {after}: all workers of a process group make theirs in the same order; "
                "`deadline` is how long they wait"
            )
        if missing:
            return _lost(missing[0], f"{who} left while the workers of the process group were connected by Gloo: {said}")
        return kind(f"the workers of the process group could not be connected by Gloo, after {after}: {said}")

    def _without_store(self, said: str) -> _native.Error:
        """The error where the store is lost: worker 0 ends its part at its own deadline, which may be a moment before this worker's."""
        text = f"torch's store, which worker 0 or its launcher serves, is lost: {said}"
        if self._not_done:
            text = f"worker {self._awaited} has not {self._not_done} after {self._seconds()}, and {text}"
        return _native.DeadlineError(text) if self._not_done and self._is_late() else _lost(0, text)

    def _missing(self) -> list[int]:
        """Workers that do not come, or that left while they were connected."""
        assert self._store is not None
        key = "word" if self._not_done else "end"
        if not self._not_done:
            self._end()
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"end of {each}" for each in range(self._size)], _LAST_WORDS)
        return [each for each in range(self._size) if not self._store.check([f"{key} of {each}"])]

    def _is_late(self) -> bool:
        # torch waits for whole milliseconds, and so ends a moment before the deadline.
        return time.monotonic() - self._began >= (self._deadline - 2 * _MOMENT).total_seconds()

    def _seconds(self) -> str:
        return f"{self._deadline.total_seconds() if self._is_late() else time.monotonic() - self._began:.3g} s"


def _lost(rank: int, text: str) -> _native.PeerLostError:
    error = _native.PeerLostError(text)
    error.rank = rank
    return error
