"""Uneven inputs: which workers still have inputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from sparsesync import _native

_joins = threading.local()  # is_within: whether this thread, which may be a worker, is within a join()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Guards a join() of this thread. Raises OrderError within another join()."""
    if getattr(_joins, "is_within", False):
        raise _native.OrderError(
            "join: within another join() a worker without inputs would take part in the steps of one model only, while the others wait "
            "for it in the other model: wrap one torch.nn.Module that holds both models, and join() its DistributedDataParallel"
        )
    _joins.is_within = True
    try:
        yield
    finally:
        _joins.is_within = False


class UnevenInputs:
    """The reports that workers of a join() exchange at the beginning of each step."""

    def __init__(self, of_all: bool, throws: bool) -> None:
        self._of_all = of_all
        self._throws = throws
        self._active = 0
        self.root = 0  # lowest rank that still has inputs

    def begin_step(self, session: _native.Session) -> int:
        """Reports a step of a worker that has inputs. Returns the lowest rank that has inputs."""
        self._tell(session, b"1")
        return self.root

    def shadow(self, session: _native.Session) -> bool:
        """Reports that this worker has no inputs. Returns whether another worker has a step to make."""
        return self._tell(session, b"0") > 0

    def scale(self, workers: int) -> float:
        """Returns the factor for a mean over all workers."""
        return 1.0 if self._of_all else workers / max(1, self._active)

    def _tell(self, session: _native.Session, own: bytes) -> int:
        told = session.all_gather(own)
        self._active = told.count(b"1")
        if self._active:
            self.root = told.index(b"1")
        if self._throws and self._active < len(told):
            raise RuntimeError(f"worker {told.index(b'0')} has no more inputs, and throw_on_early_termination is set")
        return self._active
