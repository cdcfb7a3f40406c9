"""Traces of a training run: the rows that its gradients touch."""

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
    """Observes some steps of a wrapper, and then writes a file.

    If a recording fails on any worker, it ends on all of them. Training continues, and worker 0 warns.
    """

    def __init__(self, what: str, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        """Starts a recording.

        Raises InputError on all workers if one of them cannot begin, and AgreementError if they record different
        things.

        what: the name of the public function, for messages.
        """
        self._what = what
        self._synchronizer = synchronizer
        self._wanted = steps
        self._force = force
        self._path = ""
        self._problem = ""  # why there is no file
        session = synchronizer.session
        wrong = ""
        if synchronizer.exchange.listener is not None:
            wrong = f"{what}: another recording is running; close() it first"
        elif not isinstance(steps, int) or steps < 1:
            wrong = f"{what}: {steps} steps; at least 1"
        elif session.rank == 0:
            wrong = self._problem_of(path)
        agree_on_problems(session, wrong)
        session.agree("the recording", [("function", what), ("steps", str(steps))])
        self._begin()
        synchronizer.exchange.listener = self

    def _problem_of(self, path: str | os.PathLike[str]) -> str:
        """Returns the reason why worker 0 cannot write to the path; empty if it can."""
        try:
            self._path = os.path.abspath(os.fsdecode(path))  # absolute, because the program may change its working directory
            if os.path.exists(path) and not self._force:
                return f"{self._what}: '{os.fsdecode(path)}' exists; choose another name, or force=True"
            _laboratory.expect_laboratory(self._what)
            self._expect_writable()
        except (_native.Error, OSError, TypeError, ValueError) as error:
            return f"{self._what}: {error}"
        except ImportError as error:  # a build without the laboratory; the text already names the function
            return str(error)
        return ""

    def _expect_writable(self) -> None:
        """Raises a sparsesync.Error if no file can be created at the path."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Prepares the recording after all workers agreed to it."""

    @property
    def steps(self) -> int:
        """The number of steps recorded so far."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether the recording is over: the file has been written, or ``problem`` says why not."""
        return self._synchronizer.exchange.listener is not self

    @property
    def problem(self) -> str | None:
        """The reason why the recording ended without a file, the same on all workers; None if there was no problem."""
        return self._problem or None

    def close(self) -> None:
        """Writes the steps recorded so far and ends the recording.

        All ranks must call it, after the same step. It does nothing if the recording is over.
        """
        if self.complete:
            return
        self._synchronizer.exchange.listener = None
        if self.steps:
            self._finish()

    def _close_if_full(self) -> None:
        if self.steps == self._wanted:
            self.close()

    def _finish(self) -> None:
        """Writes the recorded steps. All workers call it."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turns an exception within the context into a problem of the recording, so that the training step does not fail."""
        try:
            yield
        except Exception as error:
            self._problem = self._problem or f"{type(error).__name__}: {error}"

    def _exchange(self, make: Callable[[], bytes]) -> list[bytes] | None:
        """Returns the bytes that each worker made, by rank. All workers call it.

        Returns None if any worker has a problem; the recording is then over.
        """
        own = b""
        if not self._problem:
            with self._guarded():
                own = make()
        if len(own) >= _MOST_BYTES:
            self._problem = f"one step has {len(own)} bytes: workers exchange less than {_MOST_BYTES} at once"
        told = self._synchronizer.session.all_gather(b"!" + self._problem.encode() if self._problem else b"." + own)
        problems = [f"worker {rank}: {each[1:].decode(errors='replace')}" for rank, each in enumerate(told) if each[:1] == b"!"]
        if problems:
            self._give_up(problems[0])
            return None
        return [each[1:] for each in told]

    def _write_on_worker_0(self, write: Callable[[], None]) -> None:
        """Writes on worker 0. All workers call it, and learn whether it was written."""
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


# Largest number of bytes that a worker contributes to a step; Session.all_gather accepts one more.
_MOST_BYTES = (64 << 20) - 1


def agree_on_problems(session: _native.Session, own: str) -> None:
    """Raises InputError on all workers if one of them has a problem. All workers call it between steps."""
    told = [each.decode() for each in session.all_gather(own.encode())]
    if any(told):
        raise _native.InputError(next(filter(None, told)))


class Recording(Recorder):
    """A running recording of a trace. ``record_trace()`` returns it.

    It keeps one or two bytes in memory for each row that a worker touches in a step.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Embedding(1000, 8, sparse=True)
        >>> with sparsesync.torch.DistributedDataParallel(model) as ddp:
        ...     recording = sparsesync.torch.record_trace(ddp, "trace", steps=2)
        ...     for step in range(2):
        ...         ddp(torch.tensor([step, 5])).sum().backward()
        >>> recording.complete, recording.problem
        (True, None)
        >>> sparsesync.Trace("trace").steps
        2
    """

    def __init__(self, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        self._own: dict[int, torch.Tensor] = {}  # rows of each parameter in the current step
        self._tensors: list[Synchronized] = []
        self._steps: list[list[bytes]] = []  # [step][worker]; kept on worker 0 only
        super().__init__("record_trace", synchronizer, path, steps, force)

    def _expect_writable(self) -> None:
        from sparsesync import _analysis

        # A writer that is dropped before commit() leaves no files behind.
        _analysis.TraceWriter(self._path, [_native.TensorSpec("a tensor", 1, 1)], 1, 1, force=self._force)

    @property
    def steps(self) -> int:
        """The number of steps recorded so far; 0 once the trace has been written."""
        return len(self._steps)

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        """Records the rows of a bucket's gradients; the wrapper calls it.

        Args:
            members: The parameters of the bucket.
            kind: How their gradients are sent.
            given: The gradients: None, a dense tensor of the parameter's shape, or ``indices``: ``[nnz]``, dtype
                ``torch.int64``, and ``values``: ``[nnz, ...]``, in the parameter's dtype.
        """
        if not kind.has_rows:
            return
        with self._guarded():
            for each, gradient in zip(members, given, strict=True):
                self._own[each.index] = _rows_of(gradient)

    def on_step(self) -> None:
        """Ends a recorded step; the wrapper calls it."""
        told = self._exchange(self._packed)
        self._own = {}
        if told is None:
            self._steps = []
            return
        self._steps.append(told if self._synchronizer.session.rank == 0 else [])
        self._close_if_full()

    def _packed(self) -> bytes:
        """Returns the rows that this worker touched in the step, encoded."""
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
            raise _native.InputError("no gradient was row-sparse: there is nothing to record")
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
    """Records which rows the gradients of the next steps touch, and writes a trace on worker 0.

    ``sparsesync.profile()``, ``compare()`` and ``plan()`` read the trace. All ranks must call it between the same
    steps. Parameters whose gradients are sent as rows are recorded under their names; dense gradients are not recorded,
    sparsified or not.

    The folder ``path`` exists after the last recorded step, or after ``close()`` of the result. If it cannot be written
    then, for example because the disk is full, worker 0 warns, ``problem`` of the result gives the reason on all
    workers, and training continues.

    Args:
        ddp: The wrapped module.
        path: Path of the trace, a folder that must not exist.
        steps: Number of steps to record.
        force: Replace an existing file or folder.

    Returns:
        The running recording.

    Raises:
        InputError: The path exists or cannot be created, or another recording is running. Raised on all workers.
        AgreementError: Workers passed different numbers of steps.
        ImportError: The build has no trace laboratory.

    Example:
        See ``Recording``.
    """
    return Recording(ddp.synchronizer, path, steps, force)


def _rows_of(gradient: Submitted) -> torch.Tensor:
    if gradient is None:
        return torch.empty(0, dtype=torch.int64)
    if isinstance(gradient, tuple):
        return distinct(gradient[0])
    return nonzero_rows(gradient)
