"""Sums of a few numbers over all workers, sent after the gradients of each step.

They count the workers that use a parameter, and sum squares for norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.gradients import Result, wait_for_step
from sparsesync.torch.schedule.bucket import Bucket


class ScalarAllReduce:
    """A bucket of numbers whose phases follow the last gradient's reduce. All workers make one between the same steps."""

    def __init__(self, session: _native.Session, device: CpuDevice, name: str, size: int, where: torch.device) -> None:
        self._session = session
        self._device = device
        self.own = torch.zeros(size, dtype=torch.float64, device=where)  # this worker's numbers of the step
        spec = _native.TensorSpec(name, size, 1, "f64")
        self.number = session.register_bucket(name, [spec], "dense_ring")
        self._tickets: tuple[_native.Ticket, _native.Ticket] | None = None

    @property
    def submitted(self) -> bool:
        """Whether sums of a step can be requested."""
        return self._tickets is not None

    def view(self, begin: int, end: int) -> Any:
        """Returns a range of this worker's numbers in the form that the library takes."""
        return self._device.view(self.own[begin:end])

    def submit(self) -> None:
        """Sends the numbers. Call it once per step."""
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
        """Drops the sums of the last step, between steps. Waits for those in transit."""
        wait_for_step(self._session, self._tickets or ())
        self._tickets = None

    def release(self) -> None:
        """Releases the bucket. All workers call it between steps."""
        self.forget()
        self._session.release_bucket(self.number)


class Norm:
    """Sums of squares over the partitions that workers own after the reduce phase, one number per bucket.

    They are sent as one more bucket, after the last sums. All workers make one, between the same steps.
    """

    def __init__(self, session: _native.Session, device: CpuDevice, where: torch.device, most: int) -> None:
        """Registers the bucket. most: largest number of buckets to watch."""
        self._squares = ScalarAllReduce(session, device, "(sums of squares)", most, where)
        self.number = self._squares.number

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Collects squares of these buckets from now on. Call it between steps."""
        self._squares.forget()
        self._squares.own.zero_()
        for place, bucket in enumerate(buckets):
            bucket.keep_squares(self._squares.own[place : place + 1])

    def submit(self) -> None:
        """Sends the squares. Call it once per step, after all buckets."""
        self._squares.submit()

    def of(self, buckets: Iterable[Bucket]) -> torch.Tensor | None:
        """Returns the norm of the current step's gradients before they are gathered.

        Returns None, on all workers, if a scheme has no sums before the gather phase.
        """
        if not self._squares.submitted or not all(bucket.has_squares() for bucket in buckets):
            return None
        return self._squares.sums().sum().sqrt()


class UsageCounts:
    """Counts the workers that use each parameter, in every step, after the last reduce. All workers make one.

    It is needed for results that workers take at different times. It is also needed for announced rows, which a result
    names whether they are used or not.
    """

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[Bucket]) -> None:
        members = sorted(each.index for bucket in buckets for each in bucket.planned.members)
        self._session = session
        self._places = {index: place for place, index in enumerate(members)}
        where = buckets[0].planned.device
        self._sums = ScalarAllReduce(session, device, "(workers that use a parameter)", len(members), where)
        self.number = self._sums.number
        self.release = self._sums.release

    def submit(self, buckets: Iterable[Bucket]) -> None:
        """Sends the counts. Call it once per step, after all buckets were submitted."""
        self._sums.own.fill_(1)
        for bucket in buckets:
            for place, each in enumerate(bucket.planned.members):
                if not bucket.use.here[place]:
                    self._sums.own[self._places[each.index]].zero_()
        self._sums.submit()

    def are_used(self, indices: Sequence[int]) -> list[bool]:
        """Returns whether any worker used each of these parameters in the last step. Waits for the counts."""
        self._sums.wait()
        counts = self._session.result(self.number, 0)
        assert not isinstance(counts, tuple)
        used = counts.reshape(-1) != 0
        return [bool(used[self._places[index]]) for index in indices]


def ask_all(session: _native.Session, buckets: Iterable[Bucket], scale: float) -> None:
    """Writes the undecided results after workers exchanged whether they used those parameters.

    Call it between steps, on all workers. They communicate only if some result is undecided.
    """
    undecided = [(bucket, place) for bucket in buckets for place in bucket.use.undecided]
    if not undecided:
        return
    told = session.all_gather(bytes(bucket.use.here[place] for bucket, place in undecided))
    for (bucket, place), flags in zip(undecided, zip(*told, strict=True), strict=True):
        if any(flags):
            bucket.write_result(place, scale)
