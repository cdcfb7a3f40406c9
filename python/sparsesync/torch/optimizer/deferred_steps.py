"""Optimizers that update each parameter separately, as soon as its gradient arrives."""

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
    """Lets ``step()`` and ``zero_grad()`` of an optimizer return before all gradients have arrived.

    The update of a parameter is deferred until its gradient arrives, at the latest until the program uses the
    parameter. It uses the learning rate and all other options that the optimizer's groups had at ``step()``. A schedule
    that gathers under the next forward pass (``"dear"``, sometimes ``"auto"``) needs this to hide communication.
    Without this function, ``step()`` waits for all gradients.

    All ranks must call it in the same order, before their first forward pass.

    If the module's sparsifier corrects momentum (``DGC``, ``CoarseGrained``), SGD's momentum of sparsified parameters
    is applied on each worker before sending: workers accumulate velocities and send those. The optimizer's groups
    still show the momentum, and weight decay is then added without momentum.

    Args:
        optimizer: An optimizer of the module's parameters.
        ddp: The wrapped module.
        per_parameter: Whether the update of a parameter depends on no other parameter. The default is True for the
            optimizers of ``torch.optim`` except LBFGS, and False for all others. With False, ``step()`` waits for all
            gradients. It also waits if the optimizer has hooks or ``step()`` gets a closure.
        master_weights: Keep f32 copies of f16 and bf16 parameters. The optimizer updates the copies, and each update
            rounds them to the parameters. ``state_dict()`` of the optimizer includes them. Without master weights,
            updates much smaller than a weight are lost.

    Returns:
        ``optimizer`` itself.

    Raises:
        InputError: ``optimizer`` is not an optimizer, or has none of the module's parameters.
        OrderError: The module already made a step.

    Example:
        >>> import sparsesync.torch
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> with sparsesync.torch.DistributedDataParallel(model, schedule="dear") as ddp:
        ...     optimizer = sparsesync.torch.wrap_optimizer(torch.optim.Adam(model.parameters()), ddp)
        ...     for step in range(3):
        ...         optimizer.zero_grad()
        ...         ddp(torch.ones(8, 4)).sum().backward()
        ...         optimizer.step()
        >>> optimizer.state[model.weight]["step"]
        tensor(3.)
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _native.InputError(f"wrap_optimizer: {type(optimizer).__name__} is not a torch.optim.Optimizer: pass an instance of one")
    per_parameter = _is_per_parameter(optimizer) if per_parameter is None else per_parameter
    _Deferring(optimizer, ddp, per_parameter, master_weights)
    return optimizer


def _is_per_parameter(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, torch.optim.LBFGS)


class _Deferring:
    """Replaces step() and zero_grad() of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, ddp: DistributedDataParallel, per_parameter: bool, masters: bool) -> None:
        self._optimizer = optimizer
        self._synchronizer = ddp.synchronizer
        self._per_parameter = per_parameter
        self._step: Callable[..., Any] = optimizer.step  # may be a wrapper that a learning-rate scheduler installed
        self._zero_grad: Callable[..., Any] = optimizer.zero_grad
        self._without_momentum: frozenset[int] = frozenset()  # ids of parameters whose momentum the sparsifier applies
        self._synchronizer.wrapped(self)
        self._masters = MasterWeights(optimizer) if masters else None

        def step(_: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return self._on_step(closure)

        def zero_grad(_: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            self._on_zero_grad(set_to_none)

        if hasattr(self._step, "_wrapped_by_lr_sched"):  # a scheduler checks that its wrapper is still installed
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        # Bound methods: a scheduler that is made later reads their __func__.
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
        """Returns the SGD groups with momentum, by the id() of each of their parameters."""
        if not isinstance(self._optimizer, torch.optim.SGD):
            return {}
        with_momentum = [group for group in self._optimizer.param_groups if group["momentum"] != 0]
        return {id(self.parameter_of(each)): group for group in with_momentum for each in group["params"]}

    def take_momentum(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Turns off the optimizer's momentum for these parameters."""
        self._without_momentum = frozenset(id(each) for each in parameters)

    def has_master(self, parameter: torch.nn.Parameter) -> bool:
        """Returns whether the parameter has an f32 copy."""
        return self._masters is not None and self._masters.has(parameter)

    def parameter_of(self, held: torch.Tensor) -> Any:
        """Returns the module's parameter for a tensor that the optimizer holds."""
        return held if self._masters is None else self._masters.parameter_of(held)

    def _before_state(self) -> None:
        """Makes deferred steps before the program uses the optimizer's state."""
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
        optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers check this
        return None

    def _stepped(self, factor: float, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the optimizer on the parameters that it holds now. factor: unscales gradients of parameters with master weights."""
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
        """Restricts the optimizer to these parameters within the context. groups: the options from step(), if it was called before."""
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
    """Copies a group and its list of parameters, because both may change before the deferred update."""
    now = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
    return {**now, _MEMBERS: list(group[_MEMBERS])}


class _Waiting:
    """Base class of a wrapped optimizer: any use of its state first makes the deferred steps."""

    @property
    def state(self) -> Any:
        self.__dict__.get(_BEFORE_STATE, lambda: None)()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__.get(_BEFORE_STATE, lambda: None)()
        self.__dict__["state"] = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles or copies as an optimizer that is not wrapped."""
        assert isinstance(self, torch.optim.Optimizer)
        return copyreg.__newobj__, (type(self).__mro__[2],), self.__getstate__()  # type: ignore[attr-defined]


@functools.cache
def _class_of(own: Hashable) -> type:
    assert isinstance(own, type)
    if issubclass(own, _Waiting):
        return own
    return type(own.__name__, (_Waiting, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})
