"""Results of the current step that are not taken yet, and actions that wait for gradients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from sparsesync import _native
from sparsesync.torch.schedule import deferred_params
from sparsesync.torch.schedule.bucket import Bucket

# After these errors the next step works: they are raised on all workers.
OF_ONE_STEP = (_native.InputError, _native.BudgetError, _native.DeviceMemoryError, _native.RefusedError)

Action = Callable[[Sequence[torch.nn.Parameter]], None]


class PendingResults:
    """Results of one step after another. Actions wait for the gradients that they need."""

    def __init__(self) -> None:
        self._scale = 1.0
        self._pending: dict[Bucket, None] = {}  # buckets whose results are not taken, in the order of their gathers
        self._actions: list[Action] = []  # deferred actions for their parameters
        # The gradient of each parameter that was taken, with its version, by the parameter's id(). None: not recorded.
        self._left: dict[int, tuple[weakref.ref[torch.Tensor] | None, int]] | None = None

    @property
    def pending(self) -> list[Bucket]:
        """The buckets whose results are not taken, in the order of their gathers."""
        return list(self._pending)

    def begin(self, buckets: Iterable[Bucket], scale: float) -> None:
        """Begins with buckets that were all submitted. scale: factor for results as they are taken."""
        self._scale = scale
        self._pending = dict.fromkeys(buckets)
        self._actions.clear()
        if self._left:
            self._left.clear()

    def mark(self) -> None:
        """Marks the parameters, so that any use of one waits for its results."""
        for bucket in self._pending:
            self._mark(bucket)

    def take_all(self) -> None:
        """Waits for all results, writes them to gradients, and runs the deferred actions."""
        for bucket in self.pending:
            self._take(bucket)

    def take(self, bucket: Bucket) -> None:
        """Takes the results of one bucket, unless they were taken."""
        if bucket in self._pending:
            self._take(bucket)

    def leave(self) -> None:
        """Drops results that are not taken, and their deferred actions."""
        for bucket in self._pending:
            _unmark(bucket)
        self._pending = {}
        self._actions.clear()

    def once_there(self, parameters: Iterable[torch.nn.Parameter], action: Action) -> None:
        """Runs an action on parameters: now, or once their gradients arrive."""
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
        """Records gradients from the next step on, for are_unchanged()."""
        self._left = self._left or {}

    def are_unchanged(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Returns whether the program has not changed gradients since they were taken; reading is not a change.

        The result is the same on all workers if they change gradients in the same way.
        """
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
        # The first use may be within inference mode or autocast, which must not affect gradients and updates.
        device = bucket.planned.device.type
        with torch.inference_mode(False), torch.autocast(device, enabled=False):
            try:
                bucket.wait()  # an exception from a signal handler leaves the bucket pending: it may be taken later
            except OF_ONE_STEP:
                self._begin_take(bucket)
                bucket.drop(stays_owed=True)  # every worker does so
                raise
            except _native.Error:
                self.leave()  # the session is over: the other results will not come either
                raise
            if bucket not in self._pending:
                return  # a signal handler took it meanwhile
            actions = self._begin_take(bucket)
            try:
                bucket.finish(self._scale)
            except (_native.Error, RuntimeError, MemoryError) as error:
                self.leave()
                if isinstance(error, OF_ONE_STEP):
                    said = f"{error}: this worker cannot use a step that the others used: load a checkpoint on all workers"
                    raise _native.Error(said) from error
                raise
            except BaseException:  # raised by a signal handler
                self._pending = {bucket: None, **self._pending}
                self._actions = actions
                self._mark(bucket)
                raise
            parameters = [each.parameter for each in bucket.planned.members]
            for action in actions:
                action(parameters)
            self._note(parameters)

    def _begin_take(self, bucket: Bucket) -> list[Action]:
        """Unmarks the bucket's parameters. Returns the actions to run on them."""
        self._pending.pop(bucket, None)  # a signal handler may have taken it
        _unmark(bucket)
        actions = list(self._actions)
        if not self._pending:
            self._actions.clear()
        return actions


def _unmark(bucket: Bucket) -> None:
    for each in bucket.planned.members:
        deferred_params.unmark(each.parameter)
