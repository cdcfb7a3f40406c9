"""Where the passes of a wrapper stand: which backward pass ends a step, and which gradients came in it."""

from __future__ import annotations

import enum
import logging
import weakref

import torch

from sparsesync import _native
from sparsesync.torch import safe_logging
from sparsesync.torch.gradients import Synchronized

_FAILED = (
    "the last backward pass failed on its way, and the workers are out of step: wrap the module again, on all workers, which closes "
    "this DistributedDataParallel"
)


class Next(enum.Enum):
    """What the last forward pass asks of the backward pass that follows."""

    FORWARD = "nothing: a forward pass comes first"
    ACCUMULATE = "keep gradients here"
    SYNCHRONIZE = "make them equal"


class Passes:
    """Tells the backward passes that synchronize gradients from others: those within no_sync(), those of another wrapper that shares
    parameters, and those that come too late."""

    def __init__(self) -> None:
        self.next = Next.FORWARD
        self.running = False  # within a backward pass that is synchronized
        self.steps_begun = 0
        self._through_output = False  # within a backward pass that comes through what a forward pass returned
        self._is_late = False  # ... which was of a step that is over
        self._warned = False
        self._sharing: dict[int, weakref.WeakSet[Passes]] = {}  # of other wrappers that share a parameter, by its index

    def share(self, index: int, other: Passes) -> None:
        """Another wrapper has the parameter of this index, too."""
        self._sharing.setdefault(index, weakref.WeakSet()).add(other)

    def is_shared(self, index: int) -> bool:
        return index in self._sharing

    def expect_finished(self) -> None:
        """Raises OrderError where the last backward pass failed."""
        if self.running:
            raise _native.OrderError(_FAILED)

    def begin_forward(self) -> None:
        """Raises as expect_finished()."""
        self._through_output = self._is_late = False  # where a backward pass failed
        self.expect_finished()

    def begin_backward(self) -> bool:
        """The first gradient of a step came. Returns whether somebody must see to it that the end of the pass is seen."""
        self.running = True
        self.steps_begun += 1
        return not self._through_output

    def come_through_output(self, steps_begun: int) -> bool:
        """A backward pass comes through what a forward pass returned. It ends the step, if it brings gradients of parameters: not the
        pass that the first one comes in, which may be one within it, of a reentrant checkpoint. Returns as begin_backward().

        steps_begun: as it was in the forward pass."""
        if steps_begun != self.steps_begun and not self.running:
            self._is_late = True
        if self._through_output:
            return False
        self._through_output = True
        return True

    def end_pass(self) -> bool:
        """Returns whether a step ends with it."""
        self._through_output = self._is_late = False
        return self.running

    def end_step(self) -> None:
        self.next = Next.FORWARD
        self.running = False

    def begins_step(self, parameter: Synchronized) -> bool:
        """Whether a gradient, the first one of a backward pass, begins a step; else it stays here. Raises OrderError for that of a
        forward pass whose step is over."""
        elsewhere = any(other._through_output or other.running for other in self._sharing.get(parameter.index, ()))
        if self.next is Next.SYNCHRONIZE:
            return self._through_output or not elsewhere
        if self._is_late:
            raise _native.OrderError(
                "backward ran again after the step of its forward pass was over: add up the losses of all forward passes of a step and "
                "call backward() once, or run all of these passes but the last one, and their backward(), within no_sync()"
            )
        if not elsewhere and not self._warned:
            self._warned = True
            safe_logging.log(
                logging.WARNING,
                "parameter '%s' got a gradient that no forward pass of the DistributedDataParallel led to: it stays on this worker. Call "
                "the wrapper, not the module, if workers should exchange it",
                parameter.name,
            )
        return False


class Arrivals:
    """Gradients of the step under way, by the indices of their parameters."""

    def __init__(self) -> None:
        self.ready: dict[int, None] = {}  # in the order in which they became ready
        self.streams: dict[int, int] = {}  # that wrote them
        self.copies: dict[int, torch.Tensor] = {}  # of parameters that another wrapper shares: as this one found them
        self._counts: dict[int, int] = {}
        self._expected: dict[int, int] = {}  # the most that there were in a step, where there were several

    def clear(self) -> None:
        self.ready.clear()
        self.copies.clear()
        self._counts.clear()

    def add(self, index: int) -> int:
        """A gradient was accumulated. Returns how many more of this parameter are expected in the step; less than 0 where there were
        never so many."""
        came_before = index in self.ready
        if came_before:
            del self.ready[index]
        self.ready[index] = None
        if not came_before and not self._expected:
            return 0
        count = self._counts[index] = self._counts.get(index, int(came_before)) + 1
        expected = self._expected.get(index, 1)
        if count > expected:
            self._expected[index] = count
        return expected - count
