"""Traces of a training: which rows its gradients touch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sparsesync import _laboratory, _native
from sparsesync.torch import safe_logging
from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.gradients import Kind, Submitted, Synchronized, distinct, nonzero_rows
from sparsesync.torch.step_exchange import Listener
from sparsesync.torch.synchronizer import Synchronizer


class Recorder(Listener):
    """Listens to some steps, and then writes a file.

    A recording that fails on its way, on any worker, is over on all of them, and the training goes on: worker 0 warns.
    """

    def __init__(self, what: str, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        """what: the name of the function that its user calls. Raises InputError, on all workers, where one of them cannot begin;
        AgreementError where they record different things."""
        self._what = what
        self._synchronizer = synchronizer
        self._wanted = steps
        self._force = force
        self._path = ""
        self._problem = ""  # why there is no file
        session = synchronizer.session
        wrong = ""
        if synchronizer.exchange.listener is not None:
            wrong = f"{what}: a recording runs already; close() it first"
        elif not isinstance(steps, int) or steps < 1:
            wrong = f"{what}: {steps} steps; at least 1"
        elif session.rank == 0:
            wrong = self._problem_of(path)
        agree_on_problems(session, wrong)
        session.agree("the recording", [("function", what), ("steps", str(steps))])
        self._begin()
        synchronizer.exchange.listener = self

    def _problem_of(self, path: str | os.PathLike[str]) -> str:
        """Why nothing can be written there; worker 0 asks."""
        try:
            self._path = os.path.abspath(os.fsdecode(path))  # wherever the program goes meanwhile
            if os.path.exists(path) and not self._force:
                return f"{self._what}: '{os.fsdecode(path)}' exists; choose another name, or force=True"
            _laboratory.expect_laboratory(self._what)
            self._expect_writable()
        except (_native.Error, OSError, TypeError, ValueError) as error:
            return f"{self._what}: {error}"
        except ImportError as error:  # a build without the laboratory, which says what it is wanted for
            return str(error)
        return ""

    def _expect_writable(self) -> None:
        """Raises a sparsesync.Error where no file can be made at the path."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Prepares to listen, once all workers agree to."""

    @property
    def steps(self) -> int:
        """Steps that are recorded so far."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether the recording is over: the file has been written, or `problem` says why not."""
        return self._synchronizer.exchange.listener is not self

    @property
    def problem(self) -> str | None:
        """Why the recording ended without a file, on all workers alike; None where nothing went wrong."""
        return self._problem or None

    def close(self) -> None:
        """Writes what there is, if it has not been written: all workers call it, after the same step."""
        if self.complete:
            return
        self._synchronizer.exchange.listener = None
        if self.steps:
            self._finish()

    def _close_if_full(self) -> None:
        if self.steps == self._wanted:
            self.close()

    def _finish(self) -> None:
        """On all workers: writes the steps that there are."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """What goes wrong within it, on this worker alone, is a problem of the recording, and not of the step."""
        try:
            yield
        except Exception as error:
            self._problem = self._problem or f"{type(error).__name__}: {error}"

    def _exchange(self, make: Callable[[], bytes]) -> list[bytes] | None:
        """On all workers: what each of them made, by rank. None once there is a problem on any of them, and the recording is over
        then."""
        own = b""
        if not self._problem:
            with self._guarded():
                own = make()
        if len(own) >= _MOST_BYTES:
            self._problem = f"{len(own)} bytes of one step: workers exchange less than {_MOST_BYTES} at once"
        told = self._synchronizer.session.all_gather(b"!" + self._problem.encode() if self._problem else b"." + own)
        problems = [f"worker {rank}: {each[1:].decode(errors='replace')}" for rank, each in enumerate(told) if each[:1] == b"!"]
        if problems:
            self._give_up(problems[0])
            return None
        return [each[1:] for each in told]

    def _write_on_worker_0(self, write: Callable[[], None]) -> None:
        """On all workers, which hear whether it was written."""
        session = self._synchronizer.session
        if session.rank == 0:
            with self._guarded():
                write()
        if not session.closed:
            self._exchange(bytes)
        elif self._problem:
            self._give_up(self._problem)

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        if self._synchronizer.exchange.listener is self:
            self._synchronizer.exchange.listener = None
        if self._synchronizer.session.rank == 0:
            safe_logging.warn(f"{self._what}: nothing was recorded in '{self._path}', and the training goes on: {problem}")


# Of what a worker gives in a step, within what Session.all_gather takes.
_MOST_BYTES = (64 << 20) - 1


def agree_on_problems(session: _native.Session, own: str) -> None:
    """Between steps, all workers: raises an InputError on all of them if some has a problem."""
    told = [each.decode() for each in session.all_gather(own.encode())]
    if any(told):
        raise _native.InputError(next(filter(None, told)))


class Recording(Recorder):
    """A trace that is being recorded, in memory: a byte or two for each row that some worker touches in a step."""

    def __init__(self, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        self._own: dict[int, torch.Tensor] = {}  # parameter: its rows, of this step
        self._tensors: list[Synchronized] = []
        self._steps: list[list[bytes]] = []  # [step][worker]; worker 0 alone keeps them
        super().__init__("record_trace", synchronizer, path, steps, force)

    def _expect_writable(self) -> None:
        from sparsesync import _analysis

        # Made and dropped: it leaves nothing behind that was not committed.
        _analysis.TraceWriter(self._path, [_native.TensorSpec("a tensor", 1, 1)], 1, 1, force=self._force)

    @property
    def steps(self) -> int:
        """Steps that are recorded so far."""
        return len(self._steps)

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        if not kind.has_rows:
            return
        with self._guarded():
            for each, gradient in zip(members, given, strict=True):
                self._own[each.index] = _rows_of(gradient)

    def on_step(self) -> None:
        told = self._exchange(self._packed)
        self._own = {}
        if told is None:
            self._steps = []
            return
        self._steps.append(told if self._synchronizer.session.rank == 0 else [])
        self._close_if_full()

    def _packed(self) -> bytes:
        """What this worker touched in a step."""
        self._tensors = [each for each in self._synchronizer.parameters if each.index in self._own]
        codes = [_native.encode_indices(self._own[each.index].cpu().numpy(), each.parameter.shape[0]) for each in self._tensors]
        counts = [len(self._own[each.index]) for each in self._tensors]
        head = json.dumps([(name, count, len(coded)) for (name, coded), count in zip(codes, counts, strict=True)])
        return head.encode() + b"\n" + b"".join(coded for _, coded in codes)

    def _finish(self) -> None:
        self._write_on_worker_0(self._write)
        self._steps = []

    def _write(self) -> None:
        from sparsesync import _analysis

        specs = [each.spec(Kind.ROWS) for each in self._tensors]
        if not specs:
            raise _native.InputError("no gradient was row-sparse: there is nothing that a trace could hold")
        writer = _analysis.TraceWriter(
            self._path,
            specs,
            self._synchronizer.session.size,
            len(self._steps),
            source="sparsesync.torch.record_trace",
            force=self._force,
        )
        for step, workers in enumerate(self._steps):
            for worker, told in enumerate(workers):
                writer.write(worker, step, self._unpacked(told))
        writer.commit()

    def _unpacked(self, told: bytes) -> list[Any]:
        head, _, codes = told.partition(b"\n")
        rows, at = [], 0
        for each, (name, count, size) in zip(self._tensors, json.loads(head), strict=True):
            rows.append(_native.decode_indices(name, codes[at : at + size], each.parameter.shape[0], count))
            at += size
        return rows


def record_trace(
    ddp: DistributedDataParallel, path: str | os.PathLike[str], steps: int = 20, *, force: bool = False
) -> Recording:
    """Records which rows the gradients of the next `steps` steps touch, and writes the trace that profile, compare and plan
    read, on worker 0. All workers call it between the same steps.

    Parameters whose gradients cross as rows are recorded, under their names; dense ones, made sparse or not, are not. The folder
    `path` is there after the last of these steps, or after close() of what this returns, with fewer.
    force: replace what is there. Raises InputError, on all workers, where something is there already, where the folder cannot be made,
    or where a recording runs; AgreementError where workers ask for different numbers of steps. If the trace cannot be written later,
    as where a disk is full, worker 0 warns, `problem` of what this returns says why on all workers, and the training goes on.
    """
    return Recording(ddp.synchronizer, path, steps, force)


def _rows_of(gradient: Submitted) -> torch.Tensor:
    if gradient is None:
        return torch.empty(0, dtype=torch.int64)
    if isinstance(gradient, tuple):
        return distinct(gradient[0])
    return nonzero_rows(gradient)
