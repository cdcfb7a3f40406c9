"""Whether any worker used a parameter whose rows are sent: the rows of a result do not say so where it has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsesync import _native
from sparsesync.torch.device import CpuDevice
from sparsesync.torch.schedule.bucket import Bucket
from sparsesync.torch.schedule.scalar_allreduce import SmallSums


class SummedUsage:
    """Counts the workers that use each parameter, in every step, behind the last reduce. For results that are taken at different times
    on different workers, and for announced rows, which a result has whether they are used or not. All workers make one."""

    def __init__(self, session: _native.Session, device: CpuDevice, buckets: Sequence[Bucket]) -> None:
        members = sorted(each.index for bucket in buckets for each in bucket.planned.members)
        self._session = session
        self._places = {index: place for place, index in enumerate(members)}
        where = buckets[0].planned.device
        self._sums = SmallSums(session, device, "(workers that use a parameter)", len(members), where)
        self.number = self._sums.number
        self.release = self._sums.release

    def submit(self, buckets: Iterable[Bucket]) -> None:
        """Call it once a step, after all buckets were submitted."""
        self._sums.own.fill_(1)
        for bucket in buckets:
            for place, each in enumerate(bucket.planned.members):
                if not bucket.is_used_here(place):
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
    """Writes the results that are undecided, once workers have told each other whether they used those parameters. Call it between
    steps, on all workers. They communicate only where some result is undecided."""
    undecided = [(bucket, place) for bucket in buckets for place in bucket.undecided]
    if not undecided:
        return
    told = session.all_gather(bytes(bucket.is_used_here(place) for bucket, place in undecided))
    for (bucket, place), flags in zip(undecided, zip(*told, strict=True), strict=True):
        if any(flags):
            bucket.write_result(place, scale)
