"""Buffers of a module that are sent in the background, behind the gradients: forward passes need not wait for all of these."""

from __future__ import annotations

from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import DTYPES, Result, wait_for_step
from sparsesync.torch.module_state import ModuleState, bytes_of

_DTYPES = {**DTYPES, torch.int32: "i32", torch.int64: "i64"}
_WORD = 4  # bytes: buffers of other types cross as words, of type i32


class Buffers:
    """Makes all shared buffers those of one worker: the sum of that worker's and of nothing from the others. All workers make one,
    between the same steps."""

    def __init__(self, session: _native.Session, device: CpuDevice, state: ModuleState) -> None:
        self._session = session
        self._device = device
        self._state = state
        self._shapes = {name: (each.shape, each.dtype) for name, each in state.buffers()}
        crossing = [_as_crossing(each.detach()) for _, each in state.buffers()]
        self._crossing = [(each.numel(), each.dtype) for each in crossing]
        specs = [_native.TensorSpec(name, each.numel(), 1, _DTYPES[each.dtype]) for name, each in zip(self._shapes, crossing, strict=True)]
        self.number = session.register_bucket("(buffers)", specs, "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None
        self._submitted: list[tuple[torch.Tensor, int]] = []  # and the version that was sent

    def submit(self, is_root: bool) -> None:
        """Call it once a step. is_root: whether this worker's buffers become everyone's. Raises UnsupportedError for a buffer that
        has another shape or type than at the first step, or is new."""
        named = self._state.buffers()
        for name, each in named:
            if self._shapes.get(name) != (each.shape, each.dtype):
                raise _native.UnsupportedError(
                    f"buffer '{name}' is {list(each.shape)} {each.dtype} now, and was not so in the first step: schedules that send "
                    "buffers under the forward pass need the same ones in all steps; use schedule='lazy' without wrap_optimizer(), "
                    "or broadcast_buffers=False"
                )
        by_name = dict(named)
        missing = next((name for name in self._shapes if name not in by_name), None)
        if missing is not None:
            raise _native.UnsupportedError(f"buffer '{missing}' is gone: it is sent in all steps; use broadcast_buffers=False")
        self._submitted = [(by_name[name], by_name[name]._version) for name in self._shapes]
        given: list[Any] = [self._device.view(_as_crossing(each.detach())) if is_root else None for each, _ in self._submitted]
        reduced = self._session.reduce(self.number, given, [self._device.stream()])
        self._tickets = (reduced, self._session.gather(self.number))

    @property
    def pending(self) -> bool:
        """Whether buffers were sent, and are not written yet."""
        return self._tickets is not None

    def finish(self) -> None:
        """Writes what was sent to the buffers. Call it before they are used again. A buffer that the program has replaced
        or written to since, such as by load_state_dict(), stays as it is."""
        if self._tickets is None:
            return
        try:
            wait_for_step(self._session, self._tickets)
            self._write()
        except (_native.Error, RuntimeError):
            self._tickets = None
            raise
        self._tickets = None  # what a signal's handler raises leaves them pending
        self._submitted = []

    def _write(self) -> None:
        now = {id(each) for _, each in self._state.buffers()}
        for place, (each, version) in enumerate(self._submitted):
            if id(each) not in now or each._version != version:
                continue
            result = Result(self._session, self.number, place, self._device)
            if each.dtype in _DTYPES and each.is_contiguous():
                result.write(each.detach())
            else:
                size, dtype = self._crossing[place]
                whole = torch.empty(size, dtype=dtype, device=each.device)
                result.write(whole)
                each.detach().copy_(_as_buffer(whole, each))


def _as_crossing(buffer: torch.Tensor) -> torch.Tensor:
    """Its elements one after another, in a type that can be summed."""
    if buffer.dtype in _DTYPES:
        return buffer.contiguous()
    own = bytes_of(buffer)
    whole = own.new_zeros(-(-len(own) // _WORD) * _WORD)
    whole[: len(own)] = own
    return whole.view(torch.int32)


def _as_buffer(crossed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.dtype in _DTYPES:
        return crossed.view(like.shape)
    own = crossed.view(torch.uint8)[: like.numel() * like.element_size()]
    return own.view(like.dtype).view(like.shape)
