"""A sparsifier at work on a module: its step, its buckets, and what chunks all workers choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch import gradients as of_torch
from sparsesync.torch.bucket import Bucket
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Result, Submitted
from sparsesync.torch.layout import Options, Planned
from sparsesync.torch.sparsifiers import CoarseGrained, Sparsifier

_TORCHS = {name: dtype for dtype, name in of_torch.DTYPES.items()}
State = tuple[torch.Tensor, torch.Tensor | None]  # of a parameter: what is owed, and its velocities


class Sparsifying:
    """All workers make one, and end each step, alike."""

    def __init__(self, sparsifier: Sparsifier, session: _native.Session, device: CpuDevice) -> None:
        self.sparsifier = sparsifier
        self.step = 0
        self.momentum: float | None = None  # that was taken out of an optimizer
        self.nesterov = False
        self._session = session
        self._device = device
        self._norms: _Norms | None = None

    def bucket(self, planned: Planned, options: Options, dense_scheme: str) -> SparsifiedBucket:
        return SparsifiedBucket(self._session, self._device, planned, options, dense_scheme, self)

    def native(self, specs: Sequence[_native.TensorSpec], wire: str | None) -> _native.Sparsifier:
        """Of a bucket's gradients."""
        options = self.sparsifier.native_options()
        if isinstance(self.sparsifier, CoarseGrained):
            options["chunk"] = min(self.sparsifier.chunk, sum(each.rows * each.width for each in specs))
        return _native.Sparsifier(
            self._session,
            specs,
            corrects_momentum=self.momentum is not None,
            wire=wire,
            stream=self._device.stream(),
            **options,
        )

    def of_step(self) -> dict[str, Any]:
        """What take() is told of the present step."""
        return {
            "share": self.sparsifier.share_of(self.step),
            "momentum": self.momentum or 0.0,
            "nesterov": self.nesterov,
        }

    # ---- Chunks, which all workers choose by the norms of the step before.

    def watch(self, buckets: Iterable[Bucket]) -> list[int]:
        """Between steps: there are these buckets now. Returns the number of the bucket that norms cross in, if they do."""
        own = [each for each in buckets if isinstance(each, SparsifiedBucket)]
        if self._norms:
            self._norms.release()
            self._norms = None
        if isinstance(self.sparsifier, CoarseGrained) and own:
            self._norms = _Norms(self._session, self._device, own)
        return [self._norms.number] if self._norms else []

    def begin_step(self) -> None:
        """Before a step's first gradients cross."""
        if self._norms:
            self._norms.choose(self.sparsifier.share_of(self.step))

    def end_step(self) -> None:
        """Once all gradients of a step are submitted."""
        if self._norms:
            self._norms.submit()
        self.step += 1


class SparsifiedBucket(Bucket):
    """Of its parameters' dense gradients what the sparsifier takes of them crosses."""

    def __init__(
        self,
        session: _native.Session,
        device: CpuDevice,
        planned: Planned,
        options: Options,
        dense_scheme: str,
        sparsifying: Sparsifying,
    ) -> None:
        self._sparsifying = sparsifying
        specs = [each.spec(planned.kind) for each in planned.members]
        self.native = sparsifying.native(specs, options.wire)
        super().__init__(session, device, planned, options, dense_scheme, announces=False)

    def _crossing(self, options: Options, _: str) -> tuple[list[_native.TensorSpec], str, str | None]:
        scheme = "balanced" if options.scheme.startswith("dense_") else options.scheme
        return list(self.native.crossing), scheme, None

    @property
    def gradient_tensors(self) -> int:
        return len(self.native.crossing)

    def _start(self, given: Sequence[Submitted], streams: Sequence[int]) -> _native.Ticket:
        arrays = [of_torch.handed_over(each, self._device) for each in given]
        self.native.take(arrays, streams=streams, **self._sparsifying.of_step())
        return self.native.reduce(self.number)

    def _write(self, scale: float) -> None:
        if self.native.chunks:
            self._write_chunks()
        else:
            for place, each in enumerate(self.planned.members):
                self._write_elements(place, of_torch.dense_gradient(each.parameter))
        if scale != 1:
            for each in self.planned.members:
                assert each.parameter.grad is not None
                each.parameter.grad.mul_(scale)

    def _write_elements(self, place: int, gradient: torch.Tensor) -> None:
        result = Result(self._session, self.number, place, self._device)
        dtype = _TORCHS[self.native.crossing[place].dtype]
        if gradient.is_contiguous() and gradient.dtype == dtype:
            result.write(gradient.detach())
            return
        whole = torch.empty(gradient.shape, dtype=dtype, device=gradient.device)
        result.write(whole)
        gradient.copy_(whole)

    def _write_chunks(self) -> None:
        spec = self.native.crossing[0]
        whole = torch.empty(spec.rows * spec.width, dtype=_TORCHS[spec.dtype], device=self.planned.device)
        Result(self._session, self.number, 0, self._device).write(whole)
        begin = 0
        for each in self.planned.members:
            gradient = of_torch.dense_gradient(each.parameter)
            gradient.copy_(whole[begin : begin + gradient.numel()].view(gradient.shape))
            begin += gradient.numel()

    # ---- What is kept.

    def state(self) -> dict[int, State]:
        """Copies, by the parameters' places."""
        found = {}
        for place, each in enumerate(self.planned.members):
            made = [self._empty(each.parameter.numel())]
            if self._sparsifying.momentum is not None:
                made.append(self._empty(each.parameter.numel()))
            self.native.write_state(place, *(self._device.view(numbers) for numbers in made))
            found[each.index] = (made[0], made[1] if len(made) > 1 else None)
        return found

    def set_state(self, states: dict[int, State]) -> None:
        for place, each in enumerate(self.planned.members):
            if each.index in states:
                given = [numbers for numbers in states[each.index] if numbers is not None]
                self.native.read_state(place, *(self._device.view(numbers) for numbers in given))

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.planned.device)


class _Norms:
    """Of all chunks of some buckets. They cross as one more bucket, behind the last gradients, and hide under what follows."""

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[SparsifiedBucket]) -> None:
        self._session = session
        self._device = device
        self._buckets = buckets
        self._own = torch.zeros(
            sum(each.native.chunks for each in buckets), dtype=torch.float64, device=buckets[0].planned.device
        )
        spec = _native.TensorSpec("(norms of chunks)", len(self._own), 1, "f64")
        self.number = session.register_bucket("(norms of chunks)", [spec], "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None

    def submit(self) -> None:
        """Once a step, behind all buckets."""
        begin = 0
        for each in self._buckets:
            each.native.write_norms(self._device.view(self._own[begin : begin + each.native.chunks]))
            begin += each.native.chunks
        reduced = self._session.reduce(self.number, [self._device.view(self._own)], [self._device.stream()])
        self._tickets = (reduced, self._session.gather(self.number))

    def choose(self, share: float) -> None:
        """Has every bucket take its part of the chunks that all workers choose."""
        if self._tickets is None:
            return
        for ticket in self._tickets:
            self._session.wait(ticket)
        self._tickets = None
        norms = torch.empty_like(self._own)
        Result(self._session, self.number, 0, self._device).write(norms)
        count = -(-len(norms) * share // 1)
        chosen = _native.largest_chunks(norms.tolist(), int(count))
        begin = 0
        for each in self._buckets:
            end = begin + each.native.chunks
            each.native.choose([chunk - begin for chunk in chosen if begin <= chunk < end])
            begin = end

    def release(self) -> None:
        """Between steps, all workers."""
        if self._tickets:
            for ticket in self._tickets:
                self._session.wait(ticket)
        self._session.release_bucket(self.number)
