"""Sums of sparse tensors over a group of workers, one operation after the other, as torch's collectives work."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import datetime
import functools
import itertools
import math
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import COMPLEX, DTYPES, Result, compacted, handed_over, replace_rows, rows_of, wait_for_step
from sparsesync.torch.launch import Connection
from sparsesync.torch.schedule.bucket import reason_of

# Types of tensors, and the library's names of them. Complex numbers are sent as pairs.
_DTYPES = {**DTYPES, **COMPLEX, torch.int32: "i32", torch.int64: "i64"}
# Buckets of one shape. Operations of that shape use them in turn, so this many may be under way at once.
_IN_TURN = 2
# Most shapes with buckets. The one that was not used for the longest time is released for another one.
_MOST_SHAPES = 64
_LEAVING_S = 5.0  # seconds to wait for the threads of a reducer that is closed

Rows = tuple[torch.Tensor, torch.Tensor]  # indices of rows and their values


class SparseWork(Work):
    """A sparse all-reduce that is under way, as torch's collectives return it."""

    def __init__(self, results: list[torch.Tensor]) -> None:
        super().__init__()
        self._results = results
        self._ended = threading.Event()
        self._error: BaseException | None = None
        devices: list[int | str | torch.device] = [] if results[0].device.type == "cpu" else [results[0].device]
        self._done: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        # C++ code sees an error only if it is raised within a callback.
        self._future = self._done.then(lambda _: self.result())

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Waits until the results are written. Raises the error of the operation.

        timeout: 0 waits until the deadline of the session, at most.
        """
        seconds = timeout.total_seconds()
        if not self._ended.wait(seconds if seconds > 0 else None):
            raise _native.DeadlineError(f"the all-reduce did not end within {seconds:.3g} s")
        if self._error is None:
            self._done.wait()  # on a GPU, makes the current stream wait for the results
        return bool(self.result())

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors with the results. Raises the error of the operation."""
        if self._error is not None:
            raise self._error
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Returns the future of ``result()``."""
        return self._future

    def is_completed(self) -> bool:
        """Returns whether the operation has ended."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Returns whether the operation has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Returns the error of the operation, or None."""
        return self._error

    def end(self, error: BaseException | None = None) -> None:
        """Ends the operation. Call it in the stream in which the results are written."""
        self._error = error
        self._ended.set()
        self._done.set_result(None)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Properties of an operation that decide its bucket."""

    rows: int
    width: tuple[int, ...]  # shape of a row
    dtype: torch.dtype
    reduction: str

    def spec(self) -> _native.TensorSpec:
        elements = math.prod(self.width) * (2 if self.dtype.is_complex else 1)
        return _native.TensorSpec(f"sparse tensor {self}", self.rows, elements, _DTYPES[self.dtype])

    def __str__(self) -> str:
        return f"{'x'.join(map(str, (self.rows, *self.width)))} {_DTYPES[self.dtype]}"


@dataclasses.dataclass
class _Operation:
    """An all-reduce that was asked for."""

    shape: _Shape
    given: Rows
    streams: list[int]  # streams that write the given tensors
    take: Callable[[Rows], None]  # takes the result
    work: SparseWork
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)  # without the tensors that the work keeps
    after: threading.Event | None = None  # the end of the operation that used the bucket before
    bucket: int = -1
    tickets: tuple[_native.Ticket, ...] = ()

    def end(self, error: BaseException | None = None) -> None:
        self.work.end(error)
        self.ended.set()


@dataclasses.dataclass
class _Buckets:
    """The buckets of a shape."""

    numbers: list[int] = dataclasses.field(default_factory=list)
    last: list[threading.Event] = dataclasses.field(default_factory=list)  # the end of each bucket's last operation
    operations: int = 0


class SparseReducer:
    """Sums sparse tensors over workers. All workers make the same calls, in the same order; calls do not wait.

    One thread submits operations, because a bucket for a new shape waits for all workers. It also opens the session, through
    ``connect``, for the first operation. Another thread waits for operations and writes their results.
    """

    def __init__(self, connect: Callable[[], Connection], device: CpuDevice, scheme: str = "auto", wire: str | None = None) -> None:
        self._connect: Callable[[], Connection] | None = connect
        self._device = device
        self._scheme = scheme
        self._wire = wire
        self._session: _native.Session | None = None
        self._network: tuple[str, str] = ("", "")  # kind of the connection, and why it does not use UCX
        self._in_session = threading.Lock()  # held by the thread that calls the session, except for waits
        self._buckets: collections.OrderedDict[_Shape, _Buckets] = collections.OrderedDict()
        self._asking = threading.Lock()  # held while an operation is asked for, or the last one
        self._asked: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._submitted: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"sparsesync {name}", daemon=True)
            for name, run in (("submits", self._submit_all), ("finishes", self._finish_all))
        ]
        for thread in self._threads:
            thread.start()
        _open.add(self)

    # ---- Calls

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closing.is_set()

    def all_reduce(self, tensor: torch.Tensor, reduction: str) -> SparseWork:
        """Starts to replace a sparse COO tensor by its coalesced sum, or mean, over all workers.

        Raises UnsupportedError if the dtype cannot be summed, and ClosedError.
        """
        sizes = tensor.shape[: tensor.sparse_dim()]
        shape = _Shape(math.prod(sizes), tuple(tensor.shape[tensor.sparse_dim() :]), tensor.dtype, reduction)

        def take(result: Rows) -> None:
            indices, values = result
            indices = indices.unsqueeze(0) if len(sizes) == 1 else torch.stack(torch.unravel_index(indices, sizes))
            total = torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=True, check_invariants=False)
            with torch.no_grad():
                tensor.copy_(total)

        indices = tensor._indices()
        rows = indices[0] if len(sizes) == 1 else _row_numbers(indices, sizes)
        return self._ask(shape, (rows, tensor._values()), take, SparseWork([tensor]))

    def all_reduce_dense(self, tensor: torch.Tensor, reduction: str) -> SparseWork:
        """Starts the same for a dense tensor, of which only rows with nonzero elements are sent. Raises the same errors."""
        shape = _Shape(len(tensor), tuple(tensor.shape[1:]), tensor.dtype, reduction)
        given = compacted(tensor)
        return self._ask(shape, given, functools.partial(replace_rows, tensor, given[0]), SparseWork([tensor]))

    def all_reduce_rows(self, indices: torch.Tensor, values: torch.Tensor, rows: int, reduction: str) -> SparseWork:
        """Starts an all-reduce of rows. The work's result is the list of the sum's indices and values.

        Raises the errors of all_reduce().
        """
        shape = _Shape(rows, tuple(values.shape[1:]), values.dtype, reduction)
        results = [indices, values]  # replaced by the sum

        def take(result: Rows) -> None:
            results[:] = result

        return self._ask(shape, (indices, values), take, SparseWork(results))

    def counters(self) -> dict[str, int]:
        """Returns the bytes and messages of this worker so far, as ``Session.counters()``."""
        with self._in_session:
            return {} if self._session is None else self._session.counters()

    def statistics(self) -> dict[str, Any]:
        """Returns the network, counters, and the scheme of each shape. Empty before the first operation.

        Call it while no operation is under way.
        """
        with self._in_session:
            session = self._session
            if session is None:
                return {}
            transport, without_ucx = self._network
            return {
                "transport": transport,
                "without_ucx": without_ucx,
                **session.counters(),
                "shapes": [
                    self._described(session, shape, buckets) for shape, buckets in self._buckets.items() if buckets.numbers
                ],
            }

    def _described(self, session: _native.Session, shape: _Shape, buckets: _Buckets) -> dict[str, Any]:
        choice = session.choice(buckets.numbers[0])
        return {
            "tensor": str(shape),
            "reduction": shape.reduction,
            "operations": buckets.operations,
            "scheme": choice["scheme"],
            "why": reason_of(choice) if self._scheme == "auto" else "given",
        }

    def close(self) -> None:
        """Leaves the other workers. Operations under way raise ClosedError."""
        with self._asking:
            if self._closing.is_set():
                return
            self._closing.set()
            self._asked.put(None)
        if self._session is not None:
            self._session.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LEAVING_S)

    def _ask(self, shape: _Shape, given: Rows, take: Callable[[Rows], None], work: SparseWork) -> SparseWork:
        if shape.dtype not in _DTYPES:
            known = ", ".join(str(each).removeprefix("torch.") for each in _DTYPES)
            raise _native.UnsupportedError(f"a sparse tensor of {shape.dtype} cannot be summed over workers: use one of {known}")
        held = (given[0].detach().contiguous(), given[1].detach().contiguous())
        with self._asking:
            if self._closing.is_set():
                raise _native.ClosedError("the process group is closed: make a new one")
            if shape.rows > 0 and math.prod(shape.width) > 0:
                self._asked.put(_Operation(shape, held, [self._device.stream()], take, work))
                return work
        take((held[0][:0], held[1][:0]))  # on all workers, so none waits for another
        work.end()
        return work

    # ---- The thread that submits

    def _submit_all(self) -> None:
        while (operation := self._asked.get()) is not None:
            try:
                self._submit(operation)
            except BaseException as error:
                operation.end(error)
            else:
                self._submitted.put(operation)
            del operation  # with its tensors
        self._submitted.put(None)

    def _submit(self, operation: _Operation) -> None:
        if self._closing.is_set():
            raise _native.ClosedError("the process group was closed before the all-reduce began")
        if self._connect is not None:
            connection = self._connect()
            self._network = (connection.kind, connection.without_ucx)
            self._session = connection.open(self._device, 1, None, as_submitted=True)
            self._connect = None  # it may hold the process group, whose end closes this object
            if self._closing.is_set():
                self._session.close()
        session = self._session
        assert session is not None
        self._find_bucket(session, operation)
        if operation.after is not None:
            operation.after.wait()
        with self._in_session:
            reduced = session.reduce(operation.bucket, [handed_over(operation.given, self._device)], operation.streams)
            operation.tickets = (reduced, session.gather(operation.bucket))

    def _find_bucket(self, session: _native.Session, operation: _Operation) -> None:
        """Sets the operation's bucket. Workers choose the same one, because they see the same operations."""
        shape = operation.shape
        buckets = self._buckets.get(shape)
        if buckets is None:
            if len(self._buckets) == _MOST_SHAPES:
                self._release(session, self._buckets.popitem(last=False)[1])
            buckets = self._buckets[shape] = _Buckets()
        self._buckets.move_to_end(shape)
        turn = buckets.operations % _IN_TURN
        if turn == len(buckets.numbers):
            with self._in_session:
                name = f"{shape}, bucket {turn}"
                number = session.register_bucket(name, [shape.spec()], self._scheme, shape.reduction, self._wire)
            buckets.numbers.append(number)
            buckets.last.append(operation.ended)
        else:
            operation.after, buckets.last[turn] = buckets.last[turn], operation.ended
        buckets.operations += 1
        operation.bucket = buckets.numbers[turn]

    def _release(self, session: _native.Session, buckets: _Buckets) -> None:
        for number, last in zip(buckets.numbers, buckets.last, strict=True):
            last.wait()
            with self._in_session:
                session.release_bucket(number)

    # ---- The thread that finishes

    def _finish_all(self) -> None:
        while (operation := self._submitted.get()) is not None:
            try:
                self._finish(operation)
            except BaseException as error:
                operation.end(error)
            else:
                operation.end()
            del operation

    def _finish(self, operation: _Operation) -> None:
        session, shape = self._session, operation.shape
        assert session is not None
        wait_for_step(session, operation.tickets)
        with self._in_session:
            result = Result(session, operation.bucket, 0, self._device)
            where = operation.given[1].device
            rows = rows_of(result, (shape.rows, *shape.width), shape.dtype, where)
        operation.take(rows)


def _row_numbers(indices: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """Numbers the entries of a tensor with several sparse dimensions. indices: [dimensions, nnz]."""
    strides = list(itertools.accumulate(reversed(sizes[1:]), initial=1, func=lambda a, b: a * b))
    weights = torch.tensor(list(reversed(strides)), device=indices.device)
    return (indices * weights.unsqueeze(1)).sum(0)


_open: weakref.WeakSet[SparseReducer] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    for reducer in list(_open):
        reducer.close()
