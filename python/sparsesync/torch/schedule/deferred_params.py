"""Parameters whose gradients are still in transit: any use of such a parameter waits for its gradient.

A schedule may gather sums under the next forward pass. Until then a parameter has its old gradient and its old weight.
The first use may be anywhere in the program: in a layer, an optimizer, or `print(weight)`.

mark() therefore swaps `parameter.__class__` for a class that derives from Pending and from the parameter's original
class. torch hands every operation on such an object to `Pending.__torch_function__`. That calls finish() first: it
waits for the gather, writes the gradient, makes the deferred optimizer step, and calls unmark(). unmark() restores the
original class. The operation then runs on a plain parameter.

The object stays the same: modules, optimizers and programs hold references to it, so a proxy or a copy could not
replace it. Operations that read neither values nor gradients, such as `shape`, do not wait: _harmless() lists them.
Copying and pickling wait. Python allows the swap because the derived class adds no slots. C++ code that bypasses
__torch_function__, such as autograd and a ScriptModule, does not see it: the hooks that a Synchronizer registers, and
its begin_forward(), wait there.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

_FINISH = "_sparsesync_finish"


class Pending:
    """Base class of a marked parameter: any use of its values or its gradient first takes its results."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _harmless():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        for each in _pending_in((args, kwargs)):
            finish(each)
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        finish(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        finish(self)
        return self.__reduce_ex__(protocol)


def mark(parameter: torch.nn.Parameter, owner: object, finish: Callable[[], None]) -> None:
    """Marks a parameter. If another wrapper that shares it has marked it, its results are taken first.

    finish: takes the parameter's results, and unmarks it.
    """
    if isinstance(parameter, Pending):
        getattr(parameter, _FINISH)[1]()
    setattr(parameter, _FINISH, (id(owner), finish))
    parameter.__class__ = _pending_class(type(parameter))


def unmark(parameter: torch.nn.Parameter) -> None:
    if isinstance(parameter, Pending):
        parameter.__class__ = type(parameter).__mro__[2]
        delattr(parameter, _FINISH)


def is_marked(parameter: torch.nn.Parameter, owner: object) -> bool:
    """Returns whether this owner has marked a parameter."""
    return isinstance(parameter, Pending) and getattr(parameter, _FINISH)[0] == id(owner)


def finish(parameter: Any) -> None:
    """Takes the results of a marked parameter."""
    getattr(parameter, _FINISH)[1]()


@functools.cache
def _pending_class(of: type) -> type:
    return type(f"Pending{of.__name__}", (Pending, of), {})


@functools.cache
def _harmless() -> frozenset[Any]:
    """Returns the operations that read neither values nor gradients."""
    tensor = torch.Tensor
    properties = (
        "device dtype grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_nested is_quantized is_sparse itemsize layout nbytes ndim "
        "requires_grad shape"
    )
    methods = (
        "__len__ dim element_size get_device is_complex is_contiguous is_floating_point ndimension nelement numel "
        "register_hook register_post_accumulate_grad_hook size storage_offset stride"
    )
    getters = {getattr(tensor, name).__get__ for name in properties.split() if hasattr(tensor, name)}
    return frozenset(getters | {getattr(tensor, name) for name in methods.split() if hasattr(tensor, name)})


def _pending_in(given: Any) -> Iterable[Any]:
    if isinstance(given, Pending):
        yield given
    elif isinstance(given, dict):
        for each in given.values():
            yield from _pending_in(each)
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _pending_in(each)
