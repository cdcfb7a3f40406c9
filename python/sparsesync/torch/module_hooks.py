"""Hooks of modules, of parameters and of outputs, which keep nothing alive and are not copied with their module."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from sparsesync.torch.gradients import Synchronized


class Handle(Protocol):
    """A hook that was registered."""

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
        """From now on `call` is told, with the module's own parameters, when the forward pass comes to a module that has some."""
        if self._sees_modules:
            return
        self._sees_modules = True
        by_parameter = {member.parameter: member for member in parameters}
        for module in self._module.modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # it takes no hooks: its parent waits for its parameters, or begin_forward()
            held = [*module.parameters(recurse=False)]
            for child in module.children():
                held += child.parameters() if isinstance(child, torch.jit.ScriptModule) else ()
            own = [by_parameter[parameter] for parameter in held if parameter in by_parameter]
            if own:
                self.add([module.register_forward_pre_hook(OnModule(functools.partial(call, own)))])

    def before_forward(self, call: Callable[..., None]) -> None:
        """Calls before each forward pass of the whole module, where that takes hooks."""
        if not isinstance(self._module, torch.jit.ScriptModule):
            self.add([self._module.register_forward_pre_hook(OnModule(call))])

    def before_state(self, call: Callable[..., None]) -> None:
        """Calls before the state of a module within is read."""
        for module in self._module.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no such hook
                self.add([module.register_state_dict_pre_hook(OnModule(call))])  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def before_ready(parameter: torch.nn.Parameter, call: Callable[..., None]) -> Hook:
    """Calls, with a tuple of gradients, whenever one is about to be accumulated."""
    node = _accumulates(parameter)
    return Hook(node, node.register_prehook(call))


def when_ready(parameter: torch.nn.Parameter, call: Callable[..., None]) -> Hook:
    """Calls whenever the parameter's gradient has been accumulated, and all hooks of the program's own that take it have run: they
    may change the gradient, and may be registered at any time.

    call: with the tuples of gradients that autograd gives to hooks of a node; the second has the one that was accumulated.
    """
    node = _accumulates(parameter)
    return Hook(node, node.register_hook(call))


def _accumulates(parameter: torch.nn.Parameter) -> Any:
    with torch.enable_grad():
        return torch.autograd.graph.get_gradient_edge(parameter).node


@dataclasses.dataclass(frozen=True)
class Hook:
    """A hook of the autograd node that accumulates a parameter's gradient. The parameter alone does not keep its node."""

    node: Any
    handle: torch.utils.hooks.RemovableHandle

    def remove(self) -> None:
        self.handle.remove()


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A call of a bound method that does not keep its object, and returns None once that is gone: hooks of a module or a parameter
    outlive the wrapper that registered them."""
    reference = weakref.WeakMethod(method)

    def call(*given: Any, **named: Any) -> Any:
        alive = reference()
        return None if alive is None else alive(*given, **named)

    return call


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that a backward pass can begin at, in what a forward pass returns: in lists, tuples, mappings and dataclasses.
    Not parameters and inputs that it passes on: hooks of these would stay."""
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
    """A hook of a module, which copies of the module do not have."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> None:
        if self._call is not None:
            self._call(*given, **named)

    def __deepcopy__(self, _: dict[int, Any]) -> OnModule:
        return OnModule(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return OnModule, (None,)
