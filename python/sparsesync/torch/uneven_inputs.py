"""Uneven inputs: who still has some."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from sparsesync import _native

_joins = threading.local()  # is_within: whether this thread, which may be a worker, is within a join()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A join() of this thread. Raises OrderError within another one."""
    if getattr(_joins, "is_within", False):
        raise _native.OrderError(
            "join: within another join() a worker without inputs would take part in the steps of one model alone, and the others wait "
            "for it in those of the other: wrap one torch.nn.Module that holds both models, and join() its DistributedDataParallel"
        )
    _joins.is_within = True
    try:
        yield
    finally:
        _joins.is_within = False


class UnevenInputs:
    """What the workers of a join() tell each other at the beginning of each step."""

    def __init__(self, of_all: bool, throws: bool) -> None:
        self._of_all = of_all
        self._throws = throws
        self._active = 0
        self.root = 0  # the first worker that still has some

    def begin_step(self, session: _native.Session) -> int:
        """A step of a worker that has inputs. Returns the first one that has."""
        self._tell(session, b"1")
        return self.root

    def shadow(self, session: _native.Session) -> bool:
        """Whether some other worker has a step to make."""
        return self._tell(session, b"0") > 0

    def scale(self, workers: int) -> float:
        """What a mean over all workers is to be multiplied by."""
        return 1.0 if self._of_all else workers / max(1, self._active)

    def _tell(self, session: _native.Session, own: bytes) -> int:
        told = session.all_gather(own)
        self._active = told.count(b"1")
        if self._active:
            self.root = told.index(b"1")
        if self._throws and self._active < len(told):
            raise RuntimeError(f"worker {told.index(b'0')} has no more inputs, and throw_on_early_termination ends the loop of all")
        return self._active
