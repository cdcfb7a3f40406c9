"""A model's file of a training: what the passes of each layer take, and what of its gradients crosses."""

from __future__ import annotations

import json
import os
import statistics
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.distributed import DistributedDataParallel
from sparsesync.torch.gradients import Kind, Synchronized
from sparsesync.torch.recording import Recorder
from sparsesync.torch.synchronizer import Synchronizer

_WARM_UP = 2  # steps that are not counted: the first that are measured are like no other


class ModelRecording(Recorder):
    """A model whose next steps are measured."""

    def __init__(
        self, synchronizer: Synchronizer, path: str | os.PathLike[str], steps: int, name: str, force: bool
    ) -> None:
        self._name = name
        self._seen = 0
        self._counted = 0
        self._passes: list[tuple[list[float], list[float]]] = []
        self._rows: list[dict[int, tuple[float, float]]] = []
        super().__init__("record_model", synchronizer, path, steps, force)

    def _expect_writable(self) -> None:
        _native.expect_writable(self._path, self._force)

    def _begin(self) -> None:
        self._schedule = self._synchronizer.measure()
        self._layers = self._schedule.layers

    @property
    def steps(self) -> int:
        """Steps that are recorded so far."""
        return self._counted

    def on_step(self) -> None:
        if self._schedule.layers is not self._layers:  # learned anew: what was seen so far is of another order
            self._layers, self._seen, self._counted, self._passes, self._rows = self._schedule.layers, 0, 0, [], []
        self._seen += 1
        passes = self._schedule.timer.passes
        if self._seen <= _WARM_UP or passes is None:
            return
        self._counted += 1  # whatever goes wrong: all workers end with the same step
        with self._guarded():
            self._passes.append(passes)
            if self._synchronizer.all_there:
                self._rows.append(self._schedule.observed())
        self._close_if_full()

    def _finish(self) -> None:
        self._synchronizer.synchronize()
        told = self._exchange(self._packed)
        if told is not None:
            self._write_on_worker_0(lambda: self._write([json.loads(each) for each in told]))

    def _packed(self) -> bytes:
        """What this worker measured."""
        if not self._rows:
            self._rows.append(self._schedule.observed())
        own = []
        for place in range(len(self._layers.members)):
            forward, backward = (statistics.median(step[way][place] for step in self._passes) for way in (0, 1))
            rows = [step[place] for step in self._rows if place in step]
            own.append((forward, backward, [statistics.fmean(told) for told in zip(*rows, strict=True)]))
        return json.dumps(own).encode()

    def _write(self, told: list[list[Any]]) -> None:
        layers = []
        for place, each in enumerate(self._layers.members):
            of_workers = [worker[place] for worker in told]
            forward, backward = (statistics.fmean(one[way] for one in of_workers) for way in (0, 1))
            rows = [one[2] for one in of_workers if one[2]]
            if self._layers.kinds[each.index] is Kind.DENSE or not rows:
                size = each.parameter.numel() * each.parameter.element_size()
                layers.append(_native.Layer(each.name, size, forward_s=forward, backward_s=backward))
            else:
                layers.append(_sparse_layer(each, rows, len(told), forward, backward))
        from sparsesync import _analysis

        provenance = [
            ("made_by", "sparsesync.torch.record_model"),
            ("steps", str(self.steps)),
            ("workers", str(len(told))),
            ("device", self._synchronizer.session.device),
            ("torch", torch.__version__),
        ]
        _analysis.write_model(self._path, self._name, layers, provenance, self._force)


def _sparse_layer(each: Synchronized, rows: list[list[float]], workers: int, forward: float, backward: float) -> _native.Layer:
    """rows: of each worker those that it touched, and those of all."""
    shape = each.parameter.shape
    touched = statistics.fmean(own for own, _ in rows)
    united = statistics.fmean(of_all for _, of_all in rows)
    densification = []
    if workers > 1 and touched > 0:
        densification.append((workers, min(max(united / touched, 1.0), float(workers))))
    return _native.Layer(
        each.name,
        rows=shape[0],
        width=each.parameter.numel() // shape[0],
        touched=touched,
        forward_s=forward,
        backward_s=backward,
        densification=densification,
    )


def record_model(
    ddp: DistributedDataParallel,
    path: str | os.PathLike[str],
    steps: int = 10,
    *,
    name: str | None = None,
    force: bool = False,
) -> ModelRecording:
    """Measures what the passes of each parameter take in the next steps, and writes the file that `sparsesync simulate` reads, on worker
    0. All workers call it between the same steps, after the first one.

    The first two steps are left out; of the next `steps` it has medians, mean over workers, and of gradients of which rows cross how
    many: those of one worker, and of all together. A parameter is a layer, in the order of the forward pass; what a module's passes
    take stands at the first of its parameters there, and at the one whose gradient comes last. Gradients that a sparsifier makes sparse
    are dense there. name: of the model; its class if not
    given. force: replace a file that is there. Raises InputError, on all workers, where something is there already, where the file
    cannot be made, or where a recording runs; AgreementError where workers ask for different numbers of steps; OrderError before the
    first step. If the file cannot be written later, worker 0 warns, as record_trace() does, and the training goes on.
    """
    return ModelRecording(ddp.synchronizer, path, steps, name or type(ddp.module).__name__, force)
