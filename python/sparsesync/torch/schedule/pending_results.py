"""Results of the step under way: which are not taken yet, and what is to be done with gradients once they are there."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from sparsesync import _native
from sparsesync.torch.schedule import deferred_params
from sparsesync.torch.schedule.bucket import Bucket

# After these the next step works: all workers know of them.
OF_ONE_STEP = (_native.InputError, _native.BudgetError, _native.DeviceMemoryError, _native.RefusedError)

Action = Callable[[Sequence[torch.nn.Parameter]], None]


class PendingResults:
    """Results of one step after another. Actions wait for the gradients that they need."""

    def __init__(self) -> None:
        self._scale = 1.0
        self._pending: dict[Bucket, None] = {}  # not taken, in the order in which they cross
        self._actions: list[Action] = []  # what is to be done with their parameters
        # The gradient of each parameter that was taken, by the parameter's id(), and its version. None: nobody asks for it.
        self._left: dict[int, tuple[weakref.ref[torch.Tensor] | None, int]] | None = None

    @property
    def pending(self) -> list[Bucket]:
        """Buckets whose results are not taken, in the order in which they cross."""
        return list(self._pending)

    def begin(self, buckets: Iterable[Bucket], scale: float) -> None:
        """All these are submitted. scale: what their results are multiplied by as they are taken."""
        self._scale = scale
        self._pending = dict.fromkeys(buckets)
        self._actions.clear()
        if self._left:
            self._left.clear()

    def mark(self) -> None:
        """From now on who uses a parameter waits for its results first."""
        for bucket in self._pending:
            self._mark(bucket)

    def take_all(self) -> None:
        """Waits for all, makes them gradients, and does all that was asked for."""
        for bucket in self.pending:
            self._take(bucket)

    def take(self, bucket: Bucket) -> None:
        """The same of a bucket, if it is not taken yet."""
        if bucket in self._pending:
            self._take(bucket)

    def leave(self) -> None:
        """Nobody waits any more for what is not taken, and nothing is done with it."""
        for bucket in self._pending:
            _unmark(bucket)
        self._pending = {}
        self._actions.clear()

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Action) -> None:
        """Does something with parameters: now, or with those whose gradients still cross once they are there."""
        here, later = [], False
        for each in parameters:
            if deferred_params.is_marked(each, self):
                later = True
            else:
                here.append(each)
        if here:
            unchanged = [] if self._left is None else [each for each in here if self._is_unchanged(each)]
            action(here)
            self._note(unchanged)
        if later:
            self._actions.append(action)

    def watch(self) -> None:
        """From the next step on are_unchanged() is asked for."""
        self._left = self._left or {}

    def are_unchanged(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Whether nobody else has changed gradients since they were taken: to read them is no change. The same on all workers where
        these change gradients alike."""
        return all(deferred_params.is_marked(each, self) or self._is_unchanged(each) for each in parameters)

    def _is_unchanged(self, parameter: torch.nn.Parameter) -> bool:
        left = None if self._left is None else self._left.get(id(parameter))
        if left is None:
            return False
        gradient, (held, version) = parameter.grad, left
        if gradient is None or held is None:
            return gradient is None and held is None
        return held() is gradient and gradient._version == version

    def _note(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        if self._left is None:
            return
        for each in parameters:
            self._left[id(each)] = (None, 0) if each.grad is None else (weakref.ref(each.grad), each.grad._version)

    def _mark(self, bucket: Bucket) -> None:
        for each in bucket.planned.members:
            deferred_params.mark(each.parameter, self, functools.partial(self._take, bucket))

    def _take(self, bucket: Bucket) -> None:
        # Whoever happens to use a parameter first: gradients and updates are not its pass's.
        device = bucket.planned.device.type
        with torch.inference_mode(False), torch.autocast(device, enabled=False):
            try:
                bucket.wait()  # what a signal's handler raises leaves the bucket pending: it may be taken later
            except OF_ONE_STEP:
                self._begin_take(bucket)
                bucket.drop(stays_owed=True)  # on all workers
                raise
            except _native.Error:
                self.leave()  # the session is over: the other results will not come either
                raise
            if bucket not in self._pending:
                return  # a signal's handler took it meanwhile
            actions = self._begin_take(bucket)
            try:
                bucket.finish(self._scale)
            except (_native.Error, RuntimeError, MemoryError) as error:
                self.leave()
                if isinstance(error, OF_ONE_STEP):
                    said = f"{error}: this worker cannot take a step that the others have: load a checkpoint on all"
                    raise _native.Error(said) from error
                raise
            except BaseException:  # of a signal's handler
                self._pending = {bucket: None, **self._pending}
                self._actions = actions
                self._mark(bucket)
                raise
            parameters = [each.parameter for each in bucket.planned.members]
            for action in actions:
                action(parameters)
            self._note(parameters)

    def _begin_take(self, bucket: Bucket) -> list[Action]:
        """Returns what is to be done with the bucket's parameters. They may be used from now on."""
        self._pending.pop(bucket, None)  # a signal's handler may have taken it
        _unmark(bucket)
        actions = list(self._actions)
        if not self._pending:
            self._actions.clear()
        return actions


def _unmark(bucket: Bucket) -> None:
    for each in bucket.planned.members:
        deferred_params.unmark(each.parameter)
