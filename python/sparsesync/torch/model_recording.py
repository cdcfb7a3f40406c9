"""Model files of a training run: the computing time of each layer, and the size of its gradient."""

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

_WARM_UP = 2  # steps that are not counted: the first measured steps are slower than the rest


class ModelRecording(Recorder):
    """A running recording of a model file. ``record_model()`` returns it.

    Example:
        >>> import json
        >>> import pathlib
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        >>> with sparsesync.torch.DistributedDataParallel(model) as ddp:
        ...     ddp(torch.ones(2, 4)).sum().backward()  # shows the order of the layers
        ...     recording = sparsesync.torch.record_model(ddp, "model.json", steps=3)
        ...     for step in range(5):  # two of them are not counted
        ...         ddp(torch.ones(2, 4)).sum().backward()
        >>> recording.complete, recording.steps
        (True, 3)
        >>> [layer["name"] for layer in json.loads(pathlib.Path("model.json").read_text())["layers"]]
        ['0.weight', '0.bias', '1.weight', '1.bias']
    """

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
        """The number of steps recorded so far."""
        return self._counted

    def on_step(self) -> None:
        """Ends a measured step; the wrapper calls it."""
        if self._schedule.layers is not self._layers:  # the layers were reordered: start again
            self._layers, self._seen, self._counted, self._passes, self._rows = self._schedule.layers, 0, 0, [], []
        self._seen += 1
        passes = self._schedule.timer.passes
        if self._seen <= _WARM_UP or passes is None:
            return
        self._counted += 1  # also if recording fails, so that all workers end with the same step
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
        """Returns this worker's measurements, encoded."""
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
    """Makes a layer with a row-sparse gradient. rows: for each worker the number of rows it touched, and the number of the union."""
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
    """Measures computing time and gradient size of each parameter, and writes a model file on worker 0.

    ``sparsesync simulate`` reads the file. All ranks must call it between the same steps, after the first one.

    Each parameter is a layer, in the order of the forward pass. The first two steps are not counted. Times are medians
    over the next ``steps`` steps, averaged over workers, in seconds. For a gradient that is sent as rows, the file has
    the mean number of rows of a worker and of the union of all workers. Sparsified gradients count as dense. A module's
    forward time is attributed to its first parameter, and its backward time to the parameter whose gradient arrives
    last.

    If the file cannot be written at the end, worker 0 warns, ``problem`` of the result gives the reason on all workers,
    and training continues.

    Args:
        ddp: The wrapped module.
        path: Path of the file, which must not exist.
        steps: Number of steps to measure.
        name: Name of the model; the name of its class if not given.
        force: Replace an existing file.

    Returns:
        The running recording.

    Raises:
        InputError: The path exists or cannot be created, or another recording is running. Raised on all workers.
        AgreementError: Workers passed different numbers of steps.
        OrderError: The module has not made a step yet.
        ImportError: The build has no trace laboratory.

    Example:
        See ``ModelRecording``.
    """
    return ModelRecording(ddp.synchronizer, path, steps, name or type(ddp.module).__name__, force)
