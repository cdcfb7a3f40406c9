"""Buffers of a module that cross in the background, behind the gradients: forward passes need not wait for all of these."""

from __future__ import annotations

from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import DTYPES, Result
from sparsesync.torch.state import buffers_of

_DTYPES = {**DTYPES, torch.int32: "i32", torch.int64: "i64"}


class Buffers:
    """All of them become those of one worker: the sum of what it has and of nothing elsewhere. All workers make one, between the
    same steps. Raises UnsupportedError for a type that does not add up."""

    def __init__(self, session: _native.Session, device: CpuDevice, module: torch.nn.Module) -> None:
        self._session = session
        self._device = device
        self._buffers = buffers_of(module)
        for name, buffer in self._buffers:
            if buffer.dtype not in _DTYPES:
                raise _native.UnsupportedError(
                    f"buffer '{name}' is {buffer.dtype}, which does not cross under the forward pass: another schedule, or "
                    "broadcast_buffers=False"
                )
        specs = [_native.TensorSpec(name, buffer.numel(), 1, _DTYPES[buffer.dtype]) for name, buffer in self._buffers]
        self.number = session.register_bucket("(buffers)", specs, "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None

    def submit(self, is_root: bool) -> None:
        """Once a step. is_root: whether this worker's are those that count."""
        given: list[Any] = [self._device.view(each.detach().contiguous()) if is_root else None for _, each in self._buffers]
        reduced = self._session.reduce(self.number, given, [self._device.stream()])
        self._tickets = (reduced, self._session.gather(self.number))

    def finish(self) -> None:
        """Before they are used again."""
        if self._tickets is None:
            return
        for ticket in self._tickets:
            self._session.wait(ticket)
        self._tickets = None
        for place, (_, each) in enumerate(self._buffers):
            result = Result(self._session, self.number, place, self._device)
            if each.is_contiguous():
                result.write(each.detach())
            else:
                whole = torch.empty(each.shape, dtype=each.dtype, device=each.device)
                result.write(whole)
                each.copy_(whole)
