"""Optimizers whose steps wait for each gradient apart: a parameter's update is made when its gradient is there."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as of_torch

from sparsesync import _native
from sparsesync.torch.master_weights import MasterWeights

if TYPE_CHECKING:
    from sparsesync.torch.distributed import DistributedDataParallel

_SKIPPED = "params"


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
        raise _native.InputError(f"wrap_optimizer: {type(optimizer).__name__} is no torch.optim.Optimizer")
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
        optimizer.register_state_dict_pre_hook(lambda _: self._synchronizer.synchronize())
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._synchronizer.synchronize())

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

    def _on_step(self, closure: Callable[[], Any] | None) -> Any:
        optimizer = self._optimizer
        hooks = (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or of_torch._global_optimizer_pre_hooks
            or of_torch._global_optimizer_post_hooks
        )
        if closure is not None or hooks or not self._per_parameter:
            self._synchronizer.synchronize()
            with self._of(list(self._parameters()), None):
                return self._stepped(self._synchronizer.stepping.unscaled_by, closure)
        groups = [_without_parameters(group) for group in optimizer.param_groups]
        factor = self._synchronizer.stepping.unscaled_by
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
            with self._of(parameters, None):
                self._zero_grad(set_to_none)
            if self._masters:
                self._masters.zero_grad(parameters, set_to_none)

        self._synchronizer.once_there(self._parameters(), clear)

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (self.parameter_of(each) for group in self._optimizer.param_groups for each in group["params"])

    def _update(self, parameters: Sequence[torch.nn.Parameter], groups: list[dict[str, Any]], factor: float) -> None:
        with self._of(parameters, groups):
            self._stepped(factor)

    def _of(self, parameters: Sequence[torch.nn.Parameter], groups: list[dict[str, Any]] | None) -> _OfSome:
        return _OfSome(self._optimizer, parameters, groups, self._without_momentum, self.parameter_of)


class _OfSome:
    """Within it an optimizer has some of its parameters alone, and its groups say what they said then."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.nn.Parameter],
        groups: list[dict[str, Any]] | None,
        without_momentum: frozenset[int],
        parameter_of: Callable[[torch.Tensor], Any],
    ) -> None:
        self._optimizer = optimizer
        self._parameter_of = parameter_of
        self._without_momentum = without_momentum
        self._wanted = {id(each) for each in parameters}
        self._groups = groups

    def __enter__(self) -> None:
        self._all = self._optimizer.param_groups
        said = self._groups or [_without_parameters(group) for group in self._all]
        some = []
        for group, of_group in zip(self._all, said, strict=False):
            held = [(each, id(self._parameter_of(each))) for each in group[_SKIPPED]]
            members = [each for each, own in held if own in self._wanted and own not in self._without_momentum]
            without = [each for each, own in held if own in self._wanted and own in self._without_momentum]
            if members:
                some.append({**of_group, _SKIPPED: members})
            if without:
                some.append({**of_group, "momentum": 0.0, "nesterov": False, _SKIPPED: without})
        self._optimizer.param_groups = some

    def __exit__(self, *_: object) -> None:
        self._optimizer.param_groups = self._all


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items() if name != _SKIPPED
    }
