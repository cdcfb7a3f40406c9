"""Hooks of modules, parameters and outputs. They keep nothing alive, and copies of a module do not have them."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from sparsesync.torch.gradients import Synchronized


class Handle(Protocol):
    """A registered hook."""

    def remove(self) -> None: ...


class ModuleHooks:
    """The hooks of one wrapper."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._handles: list[Handle] = []
        self._sees_modules = False

    def add(self, handles: Iterable[Handle]) -> None:
        self._handles += handles

    def see_modules(self, parameters: Sequence[Synchronized], call: Callable[..., None]) -> None:
        """Calls ``call`` with a module's direct parameters before the forward pass of each module that has any."""
        if self._sees_modules:
            return
        self._sees_modules = True
        by_parameter = {member.parameter: member for member in parameters}
        for module in self._module.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # ScriptModules take no hooks: the parent module, or begin_forward(), waits for their parameters
            held = [*module.parameters(recurse=False)]
            for child in module.children():
                held += child.parameters() if isinstance(child, torch.jit.ScriptModule) else ()
            own = [by_parameter[parameter] for parameter in held if parameter in by_parameter]
            if own:
                self.add([module.register_forward_pre_hook(OnModule(functools.partial(call, own)))])

    def before_forward(self, call: Callable[..., None]) -> None:
        """Calls before each forward pass of the whole module, unless it is a ScriptModule."""
        if not isinstance(self._module, torch.jit.ScriptModule):
            self.add([self._module.register_forward_pre_hook(OnModule(call))])

    def before_state(self, call: Callable[..., None]) -> None:
        """Calls before the state_dict() of any submodule is read."""
        for module in self._module.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # ScriptModules take no such hook
                self.add([module.register_state_dict_pre_hook(OnModule(call))])  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def before_ready(parameter: torch.nn.Parameter, call: Callable[..., None]) -> Hook:
    """Calls, with a tuple of gradients, before a gradient is accumulated."""
    node = _accumulates(parameter)
    return Hook(node, node.register_prehook(call))


def when_ready(parameter: torch.nn.Parameter, call: Callable[..., None]) -> Hook:
    """Calls after a gradient was accumulated and all hooks of the program for the parameter have run.

    Those hooks may change the gradient, and may be registered at any time.

    call: receives the tuples of gradients that autograd passes to a node's hooks. The second has the accumulated
    gradient.
    """
    node = _accumulates(parameter)
    return Hook(node, node.register_hook(call))


def _accumulates(parameter: torch.nn.Parameter) -> Any:
    with torch.enable_grad():
        return torch.autograd.graph.get_gradient_edge(parameter).node


@dataclasses.dataclass(frozen=True)
class Hook:
    """A hook of the autograd node that accumulates a parameter's gradient. It keeps the node alive, which the parameter does not."""

    node: Any
    handle: torch.utils.hooks.RemovableHandle

    def remove(self) -> None:
        self.handle.remove()


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a bound method without keeping its object alive; returns None once the object is gone.

    Hooks of a module or a parameter outlive the wrapper that registered them.
    """
    reference = weakref.WeakMethod(method)

    def call(*given: Any, **named: Any) -> Any:
        alive = reference()
        return None if alive is None else alive(*given, **named)

    return call


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors at which a backward pass can begin, from the result of a forward pass.

    Looks into lists, tuples, mappings and dataclasses. Leaves out parameters and inputs that the module returns
    unchanged, because hooks on them would stay.
    """
    if isinstance(result, torch.Tensor):
        if result.grad_fn is not None and not torch._C._functorch.is_functorch_wrapped_tensor(result):
            yield result
    elif isinstance(result, Mapping):
        for each in result.values():
            yield from tensors_in(each)
    elif isinstance(result, list | tuple):
        for each in result:
            yield from tensors_in(each)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from tensors_in(getattr(result, field.name, None))


class OnModule:
    """A hook of a module that does nothing in copies of the module."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> None:
        if self._call is not None:
            self._call(*given, **named)

    def __deepcopy__(self, _: dict[int, Any]) -> OnModule:
        return OnModule(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return OnModule, (None,)
