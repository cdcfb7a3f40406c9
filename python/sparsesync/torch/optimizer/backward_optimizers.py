"""Optimizers that ``torch.distributed.optim._apply_optimizer_in_backward`` attached to parameters.

They step once gradients are equal on all workers, as under torch's DistributedDataParallel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

_ATTRIBUTE = "_in_backward_optimizers"


def take_over(parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Removes the hooks that would step before gradients are exchanged. Returns the parameters that have such optimizers."""
    found = [each for each in parameters if hasattr(each, _ATTRIBUTE)]
    if found:
        from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map as handles

        for each in found:
            for handle in handles.get(each, ()):  # type: ignore[no-untyped-call]
                handle.remove()
    return found


def give_back(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Restores the hooks that take_over() removed: parameters step again as their gradients arrive."""
    parameters = list(parameters)
    if not parameters:
        return
    from torch.distributed.optim.apply_optimizer_in_backward import param_to_acc_grad_map as nodes
    from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map as handles

    for each in parameters:
        removed = handles.get(each, ())  # type: ignore[no-untyped-call]
        if removed:
            handles[each] = [nodes[each].register_hook(_stepping(each)) for _ in removed]


def _stepping(parameter: torch.nn.Parameter) -> Callable[..., None]:
    reference = weakref.ref(parameter)

    def call(*_: object) -> None:
        alive = reference()
        if alive is not None:
            step([alive])

    return call


def step(parameters: Sequence[Any]) -> None:
    """Steps the optimizers of these parameters, and sets the gradients of those that have one to None."""
    for each in parameters:
        optimizers = getattr(each, _ATTRIBUTE, ())
        for optimizer in optimizers:
            optimizer.step()
        if optimizers:
            each.grad = None
