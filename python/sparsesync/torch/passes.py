"""State of a wrapper's passes: which backward pass ends a step, and which gradients belong to it."""

from __future__ import annotations

import enum
import logging
import weakref

import torch

from sparsesync import _native
from sparsesync.torch import safe_logging
from sparsesync.torch.gradients import Synchronized

_FAILED = (
    "the last backward pass failed, and the workers are out of step: wrap the module again on all workers, which closes this "
    "DistributedDataParallel"
)


class Next(enum.Enum):
    """The work that the last forward pass requests from the backward pass that follows."""

    FORWARD = "nothing: a forward pass comes first"
    ACCUMULATE = "keep gradients here"
    SYNCHRONIZE = "make them equal"


class Passes:
    """Separates the backward passes that synchronize gradients from all others.

    The others are passes within no_sync(), passes of another wrapper that shares parameters, and passes that come too
    late.
    """

    def __init__(self) -> None:
        self.next = Next.FORWARD
        self.running = False  # within a synchronized backward pass
        self.steps_begun = 0
        self._through_output = False  # within a backward pass through an output of the wrapper
        self._is_late = False  # that output belongs to a step that is over
        self._warned = False
        self._sharing: dict[int, weakref.WeakSet[Passes]] = {}  # passes of wrappers that share a parameter, by its index

    def share(self, index: int, other: Passes) -> None:
        """Records that another wrapper also has the parameter of this index."""
        self._sharing.setdefault(index, weakref.WeakSet()).add(other)

    def is_shared(self, index: int) -> bool:
        return index in self._sharing

    def expect_finished(self) -> None:
        """Raises OrderError if the last backward pass failed."""
        if self.running:
            raise _native.OrderError(_FAILED)

    def begin_forward(self) -> None:
        """Resets the state of the last pass. Raises like expect_finished()."""
        self._through_output = self._is_late = False  # still set if a backward pass failed
        self.expect_finished()

    def begin_backward(self) -> bool:
        """Begins a step with its first gradient. Returns whether the caller must register a callback for the end of the pass."""
        self.running = True
        self.steps_begun += 1
        return not self._through_output

    def come_through_output(self, steps_begun: int) -> bool:
        """Records that a backward pass goes through an output of a forward pass.

        This pass ends the step if it brings gradients of parameters. The pass of the first gradient may be another one:
        a pass within it, of a reentrant checkpoint. Returns like begin_backward().

        steps_begun: the value at the time of the forward pass.
        """
        if steps_begun != self.steps_begun and not self.running:
            self._is_late = True
        if self._through_output:
            return False
        self._through_output = True
        return True

    def end_pass(self) -> bool:
        """Ends a pass. Returns whether a step ends with it."""
        self._through_output = self._is_late = False
        return self.running

    def end_step(self) -> None:
        self.next = Next.FORWARD
        self.running = False

    def begins_step(self, parameter: Synchronized) -> bool:
        """Returns whether the first gradient of a backward pass begins a step; otherwise it stays on this worker.

        Raises OrderError if the gradient belongs to a forward pass whose step is over.
        """
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
                "parameter '%s' got a gradient without a forward pass of the DistributedDataParallel: it stays on this worker; to exchange "
                "it, call the wrapper instead of the module",
                parameter.name,
            )
        return False


class Arrivals:
    """The gradients of the current step, by the indices of their parameters."""

    def __init__(self) -> None:
        self.ready: dict[int, None] = {}  # in the order in which they became ready
        self.streams: dict[int, int] = {}  # stream that wrote each gradient
        self.copies: dict[int, torch.Tensor] = {}  # copies of gradients whose parameter another wrapper shares
        self._counts: dict[int, int] = {}
        self._expected: dict[int, int] = {}  # largest number of gradients in a step, if it was more than one

    def clear(self) -> None:
        self.ready.clear()
        self.copies.clear()
        self._counts.clear()

    def add(self, index: int) -> int:
        """Counts an accumulated gradient.

        Returns how many more the step expects for this parameter; negative if there were never as many.
        """
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
