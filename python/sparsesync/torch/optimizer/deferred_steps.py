"""Optimizers whose steps wait for each gradient apart: a parameter's update is made when its gradient is there."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim import optimizer as torch_optimizer

from sparsesync import _native
from sparsesync.torch.optimizer.master_weights import MasterWeights

if TYPE_CHECKING:
    from sparsesync.torch.distributed import DistributedDataParallel

_MEMBERS = "params"
_BEFORE_STATE = "_sparsesync_before_state"


def wrap_optimizer(
    optimizer: torch.optim.Optimizer,
    ddp: DistributedDataParallel,
    *,
    per_parameter: bool | None = None,
    master_weights: bool = False,
) -> torch.optim.Optimizer:
    """Lets step() and zero_grad() of an optimizer return before gradients are there that still cross: the update of each
    parameter is made once its gradient has come, at the latest when something uses the parameter, with the learning rate and
    all else that the optimizer's groups said at step(). Needed for what a schedule gathers under the next forward pass to be
    hidden; without it step() waits for all gradients. Before the first forward pass; returns the optimizer itself.

    Where the module's sparsifier corrects momentum, as DGC and CoarseGrained do, SGD's momentum is taken out of the optimizer for
    what is made sparse: velocities are added up on each worker, and cross; the groups go on saying how much momentum there is.
    Weight decay is then added outside of it.

    master_weights: of f16 and bf16 parameters the optimizer updates f32 copies, which are rounded to the parameters behind each
    update; they are a part of its state_dict(). Without them updates that are small beside their weight are lost.
    per_parameter: whether the update of one parameter depends on no other one. Known of torch's own optimizers; of others it is
    to be said: where it is not, or where the optimizer has hooks or step() is given a closure, step() waits for all gradients.
    Raises InputError where no parameter is one of the module's, OrderError after the first step.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _native.InputError(f"wrap_optimizer: {type(optimizer).__name__} is no torch.optim.Optimizer: give an instance of one")
    per_parameter = _is_per_parameter(optimizer) if per_parameter is None else per_parameter
    _Deferring(optimizer, ddp, per_parameter, master_weights)
    return optimizer


def _is_per_parameter(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, torch.optim.LBFGS)


class _Deferring:
    """Stands in for step() and zero_grad() of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, ddp: DistributedDataParallel, per_parameter: bool, masters: bool) -> None:
        self._optimizer = optimizer
        self._synchronizer = ddp.synchronizer
        self._per_parameter = per_parameter
        self._step: Callable[..., Any] = optimizer.step  # also where a scheduler has put its own there
        self._zero_grad: Callable[..., Any] = optimizer.zero_grad
        self._without_momentum: frozenset[int] = frozenset()  # parameters, whose momentum a sparsifier has
        self._synchronizer.wrapped(self)
        self._masters = MasterWeights(optimizer) if masters else None

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._on_step(closure)

        def zero_grad(_: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            self._on_zero_grad(set_to_none)

        if hasattr(self._step, "_wrapped_by_lr_sched"):  # a scheduler asks whether its own is still there
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        # Methods: a scheduler that is made later looks for what is behind them.
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        optimizer.zero_grad = types.MethodType(zero_grad, optimizer)  # type: ignore[method-assign]
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._synchronizer.synchronize())
        self._is_stepping = False
        optimizer.__dict__[_BEFORE_STATE] = self._before_state
        optimizer.__class__ = _class_of(cast(Hashable, type(optimizer)))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def momentum_groups(self) -> dict[int, dict[str, Any]]:
        """Of parameters, by their id(), the group that they are in, where it is SGD's and has momentum."""
        if not isinstance(self._optimizer, torch.optim.SGD):
            return {}
        with_momentum = [group for group in self._optimizer.param_groups if group["momentum"] != 0]
        return {id(self.parameter_of(each)): group for group in with_momentum for each in group["params"]}

    def take_momentum(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """From now on the optimizer has none for these."""
        self._without_momentum = frozenset(id(each) for each in parameters)

    def has_master(self, parameter: torch.nn.Parameter) -> bool:
        """Whether it has an f32 copy."""
        return self._masters is not None and self._masters.has(parameter)

    def parameter_of(self, held: torch.Tensor) -> Any:
        """The parameter that the optimizer has this for."""
        return held if self._masters is None else self._masters.parameter_of(held)

    def _before_state(self) -> None:
        """Before the program uses the optimizer's state: it is that after the last step()."""
        if not self._is_stepping:
            self._synchronizer.synchronize()

    def _on_step(self, closure: Callable[[], Any] | None) -> Any:
        optimizer = self._optimizer
        hooks = (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        )
        if closure is not None or hooks or not self._per_parameter:
            self._synchronizer.synchronize()
            with self._of(list(self._parameters())):
                return self._stepped(self._synchronizer.gradient_ops.unscaled_by, closure)
        groups = [_copied(group) for group in optimizer.param_groups]
        factor = self._synchronizer.gradient_ops.unscaled_by
        self._synchronizer.once_there(self._parameters(), lambda parameters: self._update(parameters, groups, factor))
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers ask for
        return None

    def _stepped(self, factor: float, closure: Callable[[], Any] | None = None) -> Any:
        """A step of what the optimizer has now. factor: of gradients with master weights."""
        masters = self._masters
        if masters is None:
            return self._step() if closure is None else self._step(closure)
        held = [each for group in self._optimizer.param_groups for each in group["params"]]
        if closure is None:
            masters.begin(held, factor)
            result = self._step()
        else:

            def evaluated() -> Any:
                loss = closure()
                masters.begin(held, factor)
                return loss

            result = self._step(evaluated)
        masters.end(held)
        return result

    def _on_zero_grad(self, set_to_none: bool) -> None:
        def clear(parameters: Sequence[torch.nn.Parameter]) -> None:
            with self._of(parameters):
                self._zero_grad(set_to_none)
            if self._masters:
                self._masters.zero_grad(parameters, set_to_none)

        self._synchronizer.once_there(self._parameters(), clear)

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (self.parameter_of(each) for group in self._optimizer.param_groups for each in group["params"])

    def _update(self, parameters: Sequence[torch.nn.Parameter], groups: list[dict[str, Any]], factor: float) -> None:
        with self._of(parameters, groups):
            self._stepped(factor)

    @contextlib.contextmanager
    def _of(self, parameters: Sequence[torch.nn.Parameter], groups: list[dict[str, Any]] | None = None) -> Iterator[None]:
        """Within it the optimizer has these parameters alone, and steps. groups: those of step(), if it was called before."""
        optimizer = self._optimizer
        before = optimizer.param_groups, self._is_stepping
        wanted = {id(each) for each in parameters}
        some = []
        for group in groups or [_copied(group) for group in optimizer.param_groups]:
            held = [(each, id(self.parameter_of(each))) for each in group[_MEMBERS]]
            members = [each for each, own in held if own in wanted and own not in self._without_momentum]
            without = [each for each, own in held if own in wanted and own in self._without_momentum]
            if members:
                some.append({**group, _MEMBERS: members})
            if without:
                some.append({**group, "momentum": 0.0, "nesterov": False, _MEMBERS: without})
        optimizer.param_groups, self._is_stepping = some, True
        try:
            yield
        finally:
            optimizer.param_groups, self._is_stepping = before


def _copied(group: dict[str, Any]) -> dict[str, Any]:
    """Copies a group and its list of parameters, which may change before the update is made."""
    now = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
    return {**now, _MEMBERS: list(group[_MEMBERS])}


class _Waiting:
    """Beside an optimizer's own class: any use of its state first has the steps made that were deferred."""

    @property
    def state(self) -> Any:
        self.__dict__.get(_BEFORE_STATE, lambda: None)()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__.get(_BEFORE_STATE, lambda: None)()
        self.__dict__["state"] = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy is an optimizer that is not wrapped."""
        assert isinstance(self, torch.optim.Optimizer)
        return copyreg.__newobj__, (type(self).__mro__[2],), self.__getstate__()  # type: ignore[attr-defined]


@functools.cache
def _class_of(own: Hashable) -> type:
    assert isinstance(own, type)
    if issubclass(own, _Waiting):
        return own
    return type(own.__name__, (_Waiting, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})
