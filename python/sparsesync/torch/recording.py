"""Traces of a training: which rows its gradients touch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.gradients import Kind, Submitted, Synchronized, distinct, nonzero_rows
from sparsesync.torch.synchronizer import Listener, Synchronizer


class Recorder(Listener):
    """Listens to some steps, and then writes a file."""

    def __init__(self, what: str, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        """what: is called so by its user. Raises InputError, on all workers, where one of them cannot begin."""
        self._synchronizer = synchronizer
        self._path = os.fspath(path)
        self._wanted = steps
        self._force = force
        if steps < 1:
            raise _native.InputError(f"{what}: {steps} steps; at least 1")
        wrong = ""
        if synchronizer.listener is not None:
            wrong = f"{what}: a recording runs already; close() it first"
        elif synchronizer.session.rank == 0 and os.path.exists(path) and not force:
            wrong = f"{what}: '{self._path}' exists; choose another name, or force=True"
        agree_on_problems(synchronizer.session, wrong)
        self._begin()
        synchronizer.listener = self

    def _begin(self) -> None:
        """Once nothing speaks against it, and before it listens."""

    @property
    def steps(self) -> int:
        """Steps that are recorded so far."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether the file has been written."""
        return self._synchronizer.listener is not self

    def close(self) -> None:
        """Writes what there is, if it has not been written: all workers call it, after the same step."""
        if self.complete:
            return
        self._synchronizer.listener = None
        if self.steps:
            self._finish()

    def _close_if_full(self) -> None:
        if self.steps == self._wanted:
            self.close()

    def _finish(self) -> None:
        """On all workers: writes the steps that there are."""
        raise NotImplementedError


def agree_on_problems(session: _native.Session, own: str) -> None:
    """Between steps, all workers: raises an InputError on all of them if some has a problem."""
    told = [each.decode() for each in session.all_gather(own.encode())]
    if any(told):
        raise _native.InputError(next(filter(None, told)))


class Recording(Recorder):
    """A trace that is being recorded, in memory: a byte or two for each row that some worker touches in a step."""

    def __init__(self, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, force: bool) -> None:
        super().__init__("record_trace", synchronizer, path, steps, force)
        self._own: dict[int, torch.Tensor] = {}  # parameter: its rows, of this step
        self._tensors: list[Synchronized] = []
        self._steps: list[list[bytes]] = []  # [step][worker]; worker 0 alone keeps them

    @property
    def steps(self) -> int:
        """Steps that are recorded so far."""
        return len(self._steps)

    def on_submit(self, members: Sequence[Synchronized], kind: Kind, given: Sequence[Submitted]) -> None:
        if not kind.has_rows:
            return
        for each, gradient in zip(members, given, strict=True):
            self._own[each.index] = _rows_of(gradient)

    def on_step(self) -> None:
        self._tensors = [each for each in self._synchronizer.parameters if each.index in self._own]
        codes = [_native.encode_indices(self._own[each.index].cpu().numpy(), each.parameter.shape[0]) for each in self._tensors]
        counts = [len(self._own[each.index]) for each in self._tensors]
        self._own = {}
        head = json.dumps([(name, count, len(coded)) for (name, coded), count in zip(codes, counts, strict=True)])
        told = self._synchronizer.session.all_gather(head.encode() + b"\n" + b"".join(coded for _, coded in codes))
        self._steps.append(told if self._synchronizer.session.rank == 0 else [])
        self._close_if_full()

    def _finish(self) -> None:
        if self._synchronizer.session.rank == 0:
            self._write()
        self._steps = []

    def _write(self) -> None:
        specs = [each.spec(Kind.ROWS) for each in self._tensors]
        if not specs:
            raise _native.InputError("no gradient was row-sparse: there is nothing that a trace could hold")
        writer = _native.TraceWriter(
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
    force: replace what is there. Raises InputError, on all workers, where something is there already or a recording runs.
    """
    return Recording(ddp.synchronizer, path, steps, force)


def _rows_of(gradient: Submitted) -> torch.Tensor:
    if gradient is None:
        return torch.empty(0, dtype=torch.int64)
    if isinstance(gradient, tuple):
        return distinct(gradient[0])
    return nonzero_rows(gradient)
