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
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d as c10d

from sparsesync import _native

_Found = TypeVar("_Found")
_Transfer: TypeAlias = tuple[int, int, torch.Tensor]  # the other worker's rank, the lane and the bytes

_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
}


class _Calls:
    """The calls that ``transport_over`` needs, on a separate Gloo group."""

    has_all_reduce = True

    def __init__(self, group: Any) -> None:
        self._group: Any = group  # a ProcessGroupGloo, for which torch has no type stubs; None once it is closed
        self._numbers = itertools.count(1)
        self._started: dict[int, tuple[dist.Work, torch.Tensor]] = {}  # keeps the tensors alive, which Gloo does not

    def start(self, receives: list[_Transfer], sends: list[_Transfer], started: list[int]) -> None:
        """Starts the receives, then the sends. Appends the number of each to ``started``, also before an error."""
        if self._group is None:
            raise RuntimeError("the group is closed")
        for call, transfers in ((self.receive, receives), (self.send, sends)):
            for rank, lane, data in transfers:
                number = next(self._numbers)
                self._started[number] = (call(rank, lane, data), data)
                started.append(number)

    def send(self, rank: int, lane: int, data: torch.Tensor) -> dist.Work:
        work: dist.Work = self._group.send([data], rank, lane)
        return work

    def receive(self, rank: int, lane: int, data: torch.Tensor) -> dist.Work:
        work: dist.Work = self._group.recv([data], rank, lane)
        return work

    def wait(self, calls: list[int], seconds: float, done: list[int]) -> None:
        """Waits for calls in turn. Appends each to ``done``, also before an error."""
        until = time.monotonic() + seconds
        for call in calls:
            work, _ = self._started.pop(call)
            self._wait(work, until - time.monotonic())
            done.append(call)

    def all_reduce(self, dtype: str, data: torch.Tensor, seconds: float) -> None:
        if self._group is None:
            raise RuntimeError("the group is closed")
        self._wait(self._group.allreduce([data.view(_DTYPES[dtype])]), seconds)

    def withdraw(self) -> None:
        self._started.clear()

    def close(self) -> None:
        self._started.clear()
        self._group = None

    @staticmethod
    def _wait(work: dist.Work, seconds: float) -> None:
        # At least 1 ms, so that a message that has already arrived does not time out.
        work.wait(datetime.timedelta(milliseconds=max(1, math.ceil(seconds * 1000))))


def initialize(deadline: datetime.timedelta | None, not_done: str = "reached its first DistributedDataParallel") -> None:
    """Initializes torch's default group over Gloo, for the processes that torchrun started.

    deadline: torch's default if not given. not_done: the action that missing workers have not taken, for messages.

    Raises DeadlineError naming the workers that did not join in time, and PeerLostError or Error if the network fails.
    """
    wait = c10d.default_pg_timeout if deadline is None else deadline
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def meet(connecting: _Connecting) -> None:
        store = _store_of_launcher(rank, size, connecting)
        connecting.all_come(c10d.PrefixStore("sparsesync/start", store), not_done)
        dist.init_process_group("gloo", store=c10d.PrefixStore("default_pg", store), rank=rank, world_size=size, timeout=wait)

    _Connecting(rank, size, wait, _address_of_launcher()).run(meet)
    # The program's collectives keep torch's default timeout.
    c10d._get_default_group()._get_backend(torch.device("cpu"))._set_default_timeout(c10d.default_pg_timeout)


def _address_of_launcher() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _store_of_launcher(rank: int, size: int, connecting: _Connecting) -> c10d.Store:
    """Returns the store at MASTER_ADDR and MASTER_PORT, as torch's env:// makes it, with two differences.

    Worker 0 does not wait inside the constructor, so it can report who is missing. The others do not wait twice the
    timeout.
    """
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
    """Makes a transport between the processes of ``group``. All of them call it, in the same order.

    The transport has a Gloo group that torch does not know of. Its messages cannot mix with the program's. torch names
    groups by their number, and the names would differ between workers if some had made more groups.

    Raises UnsupportedError if torch was built without Gloo, DeadlineError naming the workers that do not call it, and
    PeerLostError or Error if the network fails.
    """
    return transport_between(c10d._get_process_group_store(group), dist.get_rank(group), dist.get_world_size(group), deadline)


def transport_between(whole: c10d.Store, rank: int, size: int, deadline: datetime.timedelta) -> _native.Transport:
    """Makes a transport between processes that share a store. See transport_over()."""
    if not dist.is_gloo_available():
        raise _native.UnsupportedError("this build of torch has no Gloo: start the program with mpirun")

    def meet(connecting: _Connecting) -> tuple[list[bytes], Any]:
        # The count is per group and worker, so it is the same on all workers, whatever other groups they are in.
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


# Shortest timeout that torch honours: with less it waits forever.
_MOMENT = datetime.timedelta(milliseconds=1)
# Time for the other workers to report that they are alive, after connecting has failed.
_LAST_WORDS = datetime.timedelta(milliseconds=500)
# Time after the deadline to find out why connecting failed.
_LAST_ANSWERS = datetime.timedelta(milliseconds=750)


class _Connecting:
    """Lets workers meet at a store and then connect, within a deadline. Errors of torch become errors of this library."""

    def __init__(self, rank: int, size: int, deadline: datetime.timedelta, server: tuple[str, int] | None = None) -> None:
        """Starts the clock. server: host and port of the store, if it has any."""
        self._rank = rank
        self._size = size
        self._deadline = deadline
        self._server = server
        self._began = time.monotonic()
        self._store: c10d.Store | None = None
        self._not_done = ""  # the action that missing workers have not taken, for messages
        self._awaited = 0  # rank that is being waited for; all lower ranks have arrived

    def run(self, meet: Callable[[_Connecting], _Found]) -> _Found:
        """Runs ``meet`` in a separate thread, and returns its result.

        torch's store waits without a limit for the process that serves it, which may be stopped or unreachable. In that
        case the connection to the store is shut down and DeadlineError raised. An exception from a signal handler also
        ends both.
        """
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
            if not future.done():  # the store does not answer, or a signal handler raised
                self._hang_up()
                concurrent.futures.wait([future], _LAST_WORDS.total_seconds())
        raise _native.DeadlineError(
            f"torch's store, which worker 0 or its launcher serves, does not answer after {self._seconds()}: the process that serves it is "
            "stopped or unreachable"
        )

    def _until_unanswered(self) -> float:
        """Returns the seconds until the store counts as unresponsive. If it responds, connecting ends before that."""
        return self._began + (self._deadline + _LAST_ANSWERS).total_seconds() - time.monotonic()

    def _hang_up(self) -> None:
        """Shuts down this process's connections to the store, which ends calls that wait for it.

        If such a call returned only while the process ends, its thread would abort the process.
        """
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
        """Waits until a process listens at the address."""
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
        """Waits for all workers to arrive here. Returns their words, by rank.

        not_done: the action that a missing worker has not taken, for messages.
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
        self._began = time.monotonic()  # all arrived in time; connecting gets a new deadline
        return words

    def __enter__(self) -> _Connecting:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, *__: object) -> None:
        if error is None:
            self._end()
        elif isinstance(error, RuntimeError | ValueError) and not isinstance(error, _native.Error):
            raise self._explained(error) from error

    def _end(self) -> None:
        """Records in the store that this worker was alive to the end, whether it was connected or not."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"end of {self._rank}", "")

    def _explained(self, error: Exception) -> _native.Error:
        said = str(error).partition("\n")[0]
        kind = _native.DeadlineError if self._is_late() else _native.Error
        if self._store is None:
            return kind(f"torch's store, through which workers find each other, cannot be used: {said}")
        after = self._seconds()
        try:
            missing = self._missing()
        except RuntimeError:
            return self._without_store(said)
        who = f"worker {missing[0]} has" if len(missing) == 1 else f"workers {', '.join(map(str, missing))} have"
        if missing and self._not_done:
            return _native.DeadlineError(
                f"{who} not {self._not_done} after {after}: all workers of a process group must make theirs in the same order; "
                "`deadline` sets the timeout"
            )
        if missing:
            return _lost(missing[0], f"{who} left while the workers of the process group were connected by Gloo: {said}")
        return kind(f"the workers of the process group could not be connected by Gloo, after {after}: {said}")

    def _without_store(self, said: str) -> _native.Error:
        """Returns the error for a lost store. Worker 0 may stop serving it a moment before this worker's deadline."""
        text = f"torch's store, which worker 0 or its launcher serves, is lost: {said}"
        if self._not_done:
            text = f"worker {self._awaited} has not {self._not_done} after {self._seconds()}, and {text}"
        return _native.DeadlineError(text) if self._not_done and self._is_late() else _lost(0, text)

    def _missing(self) -> list[int]:
        """Returns the workers that did not arrive, or that left while they were being connected."""
        assert self._store is not None
        key = "word" if self._not_done else "end"
        if not self._not_done:
            self._end()
            with contextlib.suppress(RuntimeError):
                self._store.wait([f"end of {each}" for each in range(self._size)], _LAST_WORDS)
        return [each for each in range(self._size) if not self._store.check([f"{key} of {each}"])]

    def _is_late(self) -> bool:
        # torch rounds timeouts down to milliseconds, so it stops slightly before the deadline.
        return time.monotonic() - self._began >= (self._deadline - 2 * _MOMENT).total_seconds()

    def _seconds(self) -> str:
        return f"{self._deadline.total_seconds() if self._is_late() else time.monotonic() - self._began:.3g} s"


def _lost(rank: int, text: str) -> _native.PeerLostError:
    error = _native.PeerLostError(text)
    error.rank = rank
    return error
