"""A few numbers that are added up over workers behind the gradients of each step."""

from __future__ import annotations

from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Result, wait_for_step


class SmallSums:
    """A bucket of its own, whose phases stand behind the last gradients' reduce. All workers make one between the same steps."""

    def __init__(self, session: _native.Session, device: CpuDevice, name: str, size: int, where: torch.device) -> None:
        self._session = session
        self._device = device
        self.own = torch.zeros(size, dtype=torch.float64, device=where)  # this worker's, of the step
        spec = _native.TensorSpec(name, size, 1, "f64")
        self.number = session.register_bucket(name, [spec], "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None

    @property
    def submitted(self) -> bool:
        """Whether there is a step whose sums can be asked for."""
        return self._tickets is not None

    def view(self, begin: int, end: int) -> Any:
        """A part of this worker's as the library takes it."""
        return self._device.view(self.own[begin:end])

    def submit(self) -> None:
        """Once a step."""
        reduced = self._session.reduce(self.number, [self._device.view(self.own)], [self._device.stream()])
        self._tickets = (reduced, self._session.gather(self.number))

    def wait(self) -> None:
        """Waits for the sums of the last step."""
        assert self._tickets is not None
        wait_for_step(self._session, self._tickets)

    def sums(self) -> torch.Tensor:
        """Returns the sums of the last step. Waits for them."""
        self.wait()
        sums = torch.empty_like(self.own)
        Result(self._session, self.number, 0, self._device).write(sums)
        return sums

    def forget(self) -> None:
        """Between steps: no sums of a step can be asked for until the next one is submitted. Waits for those under way."""
        wait_for_step(self._session, self._tickets or ())
        self._tickets = None

    def release(self) -> None:
        """Between steps, all workers."""
        self.forget()
        self._session.release_bucket(self.number)
